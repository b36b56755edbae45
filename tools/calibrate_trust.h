// Whether timings and the constants fitted to them are this machine's, or those of the work beside them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perf_fit.h"

namespace rondo::tools {

/// What of a processor others may take, and how far the constants may be off, before nothing is written. A fit to an
/// idle machine's timings is off by 9 to 14 % (docs/planner.md), one to a busy machine's by 100 %.
inline constexpr double kMostBusy = 0.15, kMostMedianError = 0.5;
/// Why timings on these processors would not be this machine's; empty where nothing else runs. Takes half a second of
/// each of them.
std::string why_busy(const std::vector<int>& cpus);
/// Why constants are not to be used that were fitted to these timings; empty where they may be.
std::string why_unfit(std::string_view what, std::span<const Observation> timings, const CostVector& constants);

}  // namespace rondo::tools
