// Checks that the timings and the constants fitted to them are valid, and not distorted by other work on the machine.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/fit_constants.h"

namespace rondo::tools {

/// The largest share of a processor that other work may take.
inline constexpr double kMostBusy = 0.15;
/// Returns the reason why timings on these processors would be wrong, or an empty string if they are idle. Takes half a
/// second for each processor.
std::string why_busy(const std::vector<int>& cpus);
/// Returns the reason why constants fitted to these timings must not be used, or an empty string.
std::string why_unfit(std::string_view what, std::span<const Observation> timings, const CostVector& constants);

}  // namespace rondo::tools
