// Fits the planner's constants to timings of whole calls: what `rondo calibrate` does with what it measured.
//
// Pure functions over values.
#pragma once

#include <span>

#include "plan/cost_model.h"

namespace rondo::tools {

/// A call by one candidate: what it counts of each constant, and how long it took.
struct Observation {
  CostVector counts{};
  double measured_ns = 0;
};

/// The constants, none below 1/50 of `prior`, with which the forecasts come closest to the measurements: least
/// squares of relative errors, in which an error above 15 % counts less (Huber's weights), with a weak pull towards
/// `prior`. So what no observation counts stays as it was, and constants that only occur together share their sum in
/// the prior's ratio. Constants that are 0 in `prior` stay 0, and so do those before `first` as they are. O(iterations
/// * terms^2), deterministic.
CostVector fit_constants(std::span<const Observation> observations, const CostVector& prior,
                         CostTerm first = CostTerm{0});

/// The median of |forecast / measured - 1|.
double median_error(std::span<const Observation> observations, const CostVector& constants);

}  // namespace rondo::tools
