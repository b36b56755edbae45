// Exporters: traces of any number of ranks as Chrome trace JSON (Perfetto and chrome://tracing open it) and as JSON
// Lines.
//
// Chrome: one process for each rank of each communicator, tracks for the caller's own spans, for its operations and for
// each lane;
// operations that were under way at once get further tracks, since slices of one track must not overlap. Waiting for
// data, for room and for order are slices of their own before the working one; a flow leads from each send to its
// receives, if both ends are selected. JSON Lines: one object for each file, then one for each plan, span and record,
// with all fields.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdio>
#include <vector>

#include "rondo/status.h"
#include "trace/selection.h"
#include "trace/trace_file.h"

namespace rondo {

struct ExportReport {
  uint64_t steps = 0;  // records written out
  uint64_t lost = 0;   // records that had been overwritten before the traces were written
  uint64_t spans_lost = 0;
  uint64_t flows = 0;  // both ends are selected
  uint64_t unmatched_sends = 0, unmatched_recvs = 0;
  uint64_t backward = 0;  // Chrome: messages that would end before they begin, by clocks that are some us apart
  bool one_clock = true;  // false: some file of a host had to be placed by its own clocks
};

/// Errors: kSystem when `out` cannot be written. O(n log n) time in the number of records; the JSON is not held in
/// memory.
Expected<ExportReport> export_chrome(const std::vector<TraceFile>& files, std::FILE* out,
                                     const TraceSelection& selection = {});
Expected<ExportReport> export_json_lines(const std::vector<TraceFile>& files, std::FILE* out,
                                         const TraceSelection& selection = {});

/// Tells the operations of a file apart: their sequence number, and for sends and receives, which are counted for each
/// pair of ranks, their direction and peer too.
uint64_t operation_key(const TraceFile& file, const StepRecord& record);

/// "all_reduce of 1000 float sum".
std::string shape_text(const OperationShape& shape);

}  // namespace rondo
