// A curve as SVG.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

namespace plain {

/// values: one for each step, finite. The axes show the least and the largest value, and the number of steps.
std::string loss_svg(const std::vector<double>& values);

}  // namespace plain
