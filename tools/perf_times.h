// Times of the iterations of one measurement, and their spread.
//
// Reading the clock must not change the measurement. Iterations of 4 us or more are timed one by one. Shorter ones are
// timed in batches: if a batch took less than 4 us, the next one has twice as many iterations. A batch counts as one
// time, its mean. The clock is the time stamp counter. A reading takes some 10 ns, less than a hundredth of the time
// between two readings. Thread safety: used by one rank's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trace/tick_scale.h"

namespace rondo::tools {

/// Percentiles of the iterations' times, in seconds per operation.
struct Spread {
  double median_s = 0, p10_s = 0, p90_s = 0;
};

inline constexpr double kDisturbedMean = 1.25;   // times the median
inline constexpr double kDisturbedSpread = 2.0;  // p90 over p10
/// True if other work took much of the time: the mean is above kDisturbedMean medians, or the 90th percentile is above
/// kDisturbedSpread times the 10th.
bool is_disturbed(double mean_s, const Spread& spread);

/// The q-quantile of sorted values, with linear interpolation. Not empty.
double quantile(const std::vector<double>& sorted, double q);

class IterationTimes {
 public:
  IterationTimes(int iters, const TickScale& scale);
  /// Call when the first iteration begins.
  void start() { last_ticks_ = ticks(); }
  /// Call when an iteration has ended and the next one begins.
  void lap() {
    if (++in_batch_ == batch_) end_batch();
  }
  /// Adds an iteration that the caller has timed.
  void add(double seconds) { seconds_.push_back(seconds); }
  /// Call when all iterations have ended. operations: number of operations per iteration. nullopt if nothing was timed.
  std::optional<Spread> finish(int operations);

 private:
  void end_batch();

  const double seconds_per_tick_;
  const uint64_t short_ticks_;  // a batch shorter than this is doubled
  int batch_, in_batch_ = 0;
  uint64_t last_ticks_ = 0;
  std::vector<double> seconds_;  // per iteration, by batch
};

}  // namespace rondo::tools
