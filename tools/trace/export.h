// Exports traces of any number of ranks as Chrome trace JSON (for Perfetto and chrome://tracing) or JSON Lines.
//
// Chrome: one process for each rank of each communicator, with tracks for the caller's spans, for operations and for
// each lane. Concurrent operations get more tracks, since slices of one track must not overlap. Waiting for data, room
// and order are separate slices before the working slice. A flow connects each send with its receives, if both ends are
// selected. JSON Lines: one object for each file, then one for each plan, span and record, with all fields.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdio>
#include <vector>

#include "rondo/status.h"
#include "trace/selection.h"
#include "trace/trace_file.h"

namespace rondo {

struct ExportReport {
  uint64_t steps = 0;  // records written
  uint64_t lost = 0;   // records overwritten before the traces were written
  uint64_t spans_lost = 0;
  uint64_t flows = 0;  // with both ends selected
  uint64_t unmatched_sends = 0, unmatched_recvs = 0;
  uint64_t backward = 0;  // Chrome: messages left out because they end before they begin (clock error of some us)
  bool one_clock = true;  // false: a file was placed by its own clock, not its host's
};

/// Errors: kSystem if `out` cannot be written. O(n log n) time in the number of records. The JSON is not held in
/// memory.
Expected<ExportReport> export_chrome(const std::vector<TraceFile>& files, std::FILE* out,
                                     const TraceSelection& selection = {});
Expected<ExportReport> export_json_lines(const std::vector<TraceFile>& files, std::FILE* out,
                                         const TraceSelection& selection = {});

/// Identifies an operation in a file: its sequence number. Sends and receives are counted per pair of ranks, so the key
/// also holds their direction and peer.
uint64_t operation_key(const TraceFile& file, const StepRecord& record);

/// "all_reduce of 1000 float sum".
std::string shape_text(const OperationShape& shape);

}  // namespace rondo
