// `rondo perf --explain`: every candidate of the planner for every size, forecast against measured.
//
// Thread safety: one thread for each rank; rank 0 prints.
#pragma once

#include "perf_bench.h"
#include "perf_candidates.h"
#include "perf_options.h"

namespace rondo::tools {

/// The lines that `rondo perf --explain` prints for a point: candidates in the order of their forecasts, the planner's
/// choice first, then its regret.
std::string explain_text(const MeasuredPoint& point);

/// nranks threads of this process; the exit status.
int explain_threads(const PerfOptions& options, int nranks, const PerfRun& run);
/// This process as one rank of the world that its launcher describes.
int explain_env(const PerfOptions& options, const PerfRun& run);

}  // namespace rondo::tools
