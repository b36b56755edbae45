// Fits the planner's constants to timings of whole calls. Pure functions.
#pragma once

#include <span>

#include "plan/cost_model.h"

namespace rondo {

/// A call by one candidate: its count of each constant, and its time.
struct Observation {
  CostVector counts{};
  double measured_ns = 0;
};

/// Fits constants, none below 1/50 of `prior`, to the observations: least squares of relative errors, in which an error
/// above 15 % counts less (Huber's weights), with a weak pull towards `prior`: `pull` is its weight for each
/// observation. Constants that no observation uses keep the prior's value. Constants that always occur together keep
/// the prior's ratio. Constants that are 0 in `prior` stay 0, and those before `first` do not change. O(iterations *
/// terms^2), deterministic.
CostVector fit_constants(std::span<const Observation> observations, const CostVector& prior,
                         CostTerm first = CostTerm{0}, double pull = 2e-4);

/// Constants with a greater median_error must not be used. A fit to an idle machine's timings is off by 9 to 14 %
/// (docs/planner.md), a fit to a busy machine's by 100 %.
inline constexpr double kMostMedianError = 0.5;
/// The median of |forecast / measured - 1|.
double median_error(std::span<const Observation> observations, const CostVector& constants);

}  // namespace rondo
