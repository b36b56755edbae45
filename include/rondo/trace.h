// Tracing from a program: every executed instruction of a communicator on record, and flight records on request.
//
// docs/tracing.md explains files and commands. RONDO_TRACE, RONDO_FLIGHT_DIR and RONDO_FLIGHT_SIGNAL do the same from
// the environment, without a change to the program.
//
// Thread safety: any thread; calls wait for the operation under way, if a blocking one is.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo {

struct TraceOptions {
  std::string directory;     // made when it is not there; gets rank-R-comm-C.rtrace
  uint64_t num_records = 0;  // newest instructions that are kept, 64 bytes each; 0: RONDO_TRACE_RECORDS or 65536
};

/// Starts to record this rank's instructions on `comm`. The ranks need not do so together, but only messages whose two
/// ends are on record are shown as arrows. Errors: kInvalidArgument (traced already, a size out of range), kSystem (no
/// memory, the directory cannot be made). O(num_records): the memory is made resident at once.
RONDO_API Status trace_start(Communicator& comm, const TraceOptions& options);
/// Ends it and writes the file. Destroying the communicator does the same. Errors: kInvalidArgument (it is not traced),
/// kSystem (the file cannot be written; the records are gone then).
RONDO_API Status trace_stop(Communicator& comm);
/// A moment on the clock of traces, for TraceSpan.
RONDO_API uint64_t trace_clock();

/// What the caller itself did or waited for, to be shown beside the steps: from begin to end on trace_clock(), in a row
/// of the timeline of that name.
struct TraceSpan {
  std::string track, name;
  uint64_t begin = 0, end = 0;
  friend bool operator==(const TraceSpan&, const TraceSpan&) = default;
};
/// Whether spans would be kept. O(1).
RONDO_API bool is_traced(Communicator& comm);
/// Nothing where `comm` is not traced. Of more than 65536 the newest are kept. Spans whose end lies before their begin
/// are left out.
RONDO_API void trace_span(Communicator& comm, TraceSpan span);

/// Writes what this rank is doing, and what it can see of the others, to `directory`/rank-R-comm-C.flight.json, for
/// `rondo diagnose`. Returns within about a second, also while another thread is in an operation. Errors: kSystem.
RONDO_API Status write_flight_record(Communicator& comm, const std::string& directory);

}  // namespace rondo
