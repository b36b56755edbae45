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

/// Fits constants to the observations by least squares of relative errors. Errors above 15 % count less (Huber's
/// weights). No fitted constant is below 1/50 of `prior`. A weak pull draws the constants towards `prior`. `pull` is
/// its weight for each observation. Constants that no observation uses keep the prior's value. Constants that always
/// occur together keep the prior's ratio. Constants that are 0 in `prior` stay 0, and those before `first` do not
/// change. O((rounds * observations + sweeps) * terms^2), deterministic.
CostVector fit_constants(std::span<const Observation> observations, const CostVector& prior,
                         CostTerm first = CostTerm{0}, double pull = 2e-4);

/// A call by one candidate, and its time.
struct TimedCall {
  CostCase cost;
  double measured_ns = 0;
};
/// Returns `prior` with the spread constants and near_bytes that fit these calls best. near_bytes is that of `prior`
/// times a power of two, at most `most_near_bytes` if that is larger.
CostModel fit_model(std::span<const TimedCall> calls, const CostModel& prior, uint64_t most_near_bytes, double pull);

/// Constants with a greater median_error must not be used. A fit of the constants between hosts was off by 9 to 14 % on
/// an idle machine (docs/planner.md). A fit to the timings of a busy machine was off by 100 %.
inline constexpr double kMostMedianError = 0.5;
/// The median of |forecast / measured - 1|.
double median_error(std::span<const Observation> observations, const CostVector& constants);
/// The same, of calls with a core for each rank.
double median_error(std::span<const TimedCall> calls, const CostModel& model);

}  // namespace rondo
