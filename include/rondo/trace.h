// Tracing from a program: records every executed instruction of a communicator, and writes flight records on request.
//
// docs/tracing.md explains files and commands. RONDO_TRACE and RONDO_FLIGHT do the same from
// the environment, without a change to the program.
//
// Thread safety: any thread. trace_start and trace_stop wait for a blocking operation that is running.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo {

struct TraceOptions {
  std::string directory;     // created if missing; gets rank-R-comm-C.rtrace
  uint64_t num_records = 0;  // keeps the newest instructions, 64 bytes each; rounded up to 2^k; 0: 65536
};

/// Starts to record this rank's instructions on `comm`. Ranks may start at different times, but arrows are shown only
/// for messages with both ends recorded. Errors: kInvalidArgument (already traced, a size out of range), kSystem (no
/// memory, cannot create the directory). O(num_records): the memory is made resident at once.
RONDO_API Status trace_start(Communicator& comm, const TraceOptions& options);
/// Stops tracing and writes the file, as destroying the communicator does. Errors: kInvalidArgument (not traced),
/// kSystem (cannot write the file; the records are lost).
RONDO_API Status trace_stop(Communicator& comm);
/// The current time on the clock of traces, for TraceSpan.
RONDO_API uint64_t trace_clock();

/// An activity or wait of the caller, shown beside the steps: from begin to end on trace_clock(), in the timeline row
/// `track`.
struct TraceSpan {
  std::string track, name;
  uint64_t begin = 0, end = 0;
  friend bool operator==(const TraceSpan&, const TraceSpan&) = default;
};
/// True if spans are kept. O(1).
RONDO_API bool is_traced(Communicator& comm);
/// Adds a span to the trace of `comm`. Does nothing if `comm` is not traced. The trace keeps the newest 65536 spans. A
/// span whose end is before its begin is dropped.
RONDO_API void trace_span(Communicator& comm, TraceSpan span);

/// Writes this rank's activity, and its view of the other ranks, to `directory`/rank-R-comm-C.flight.json, for
/// `rondo diagnose`. Returns within about a second, even while another thread is in an operation. Errors: kSystem.
RONDO_API Status write_flight_record(Communicator& comm, const std::string& directory);

}  // namespace rondo
