// `rondo perf --explain`: forecast and measured time of every candidate, for every size.
// Thread safety: one thread for each rank. Rank 0 prints.
#pragma once

#include "perf_bench.h"
#include "perf_candidates.h"
#include "perf_options.h"

namespace rondo::tools {

/// The output for one point: the planner's choice, the other candidates by forecast, and the regret.
std::string explain_text(const MeasuredPoint& point);

/// Runs nranks threads. Returns the exit status.
int explain_threads(const PerfOptions& options, int nranks, const PerfRun& run);
/// Runs this process as one rank of the launcher's job.
int explain_env(const PerfOptions& options, const PerfRun& run);

}  // namespace rondo::tools
