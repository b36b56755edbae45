// Times of the iterations of one measurement, and what is said of them beside their mean.
//
// Reading the clock must not change what is measured. Iterations are timed one by one where they take 4 microseconds or
// more. Shorter ones are timed in batches: after a batch that took less, the next one has twice as many iterations. A
// batch counts as one time, its mean. The clock is the time stamp counter, which is read in some 10 ns: less than a
// hundredth of the time between two readings.
//
// Thread safety: belongs to one rank's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trace/clock.h"

namespace rondo::tools {

/// Where the times of the iterations lie, in seconds of one operation.
struct Spread {
  double median_s = 0, p10_s = 0, p90_s = 0;
};

inline constexpr double kDisturbedMean = 1.25;   // of the median
inline constexpr double kDisturbedSpread = 2.0;  // p90 over p10
/// Something other than the operation took much of the time: the mean is above kDisturbedMean medians, or the 90th
/// percentile is above kDisturbedSpread times the 10th.
bool is_disturbed(double mean_s, const Spread& spread);

/// The value below which a share q of the values lies, linear between two of them. Sorted values, not empty.
double quantile(const std::vector<double>& sorted, double q);

class IterationTimes {
 public:
  IterationTimes(int iters, const TickScale& scale);
  /// The first iteration begins.
  void start() { last_ticks_ = ticks(); }
  /// One iteration has ended, and the next one begins.
  void lap() {
    if (++in_batch_ == batch_) end_batch();
  }
  /// One iteration that the caller has timed.
  void add(double seconds) { seconds_.push_back(seconds); }
  /// All iterations have ended; of each stand so many operations. Nothing when none was timed.
  std::optional<Spread> finish(int operations);

 private:
  void end_batch();

  const double seconds_per_tick_;
  const uint64_t short_ticks_;  // a batch that takes less is too short
  int batch_, in_batch_ = 0;
  uint64_t last_ticks_ = 0;
  std::vector<double> seconds_;  // of one iteration, by batches
};

}  // namespace rondo::tools
