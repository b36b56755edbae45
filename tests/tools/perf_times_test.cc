// Median, spread and disturbed points of `rondo perf`.
// labels: unit
#include "perf_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

namespace rondo::tools {
namespace {

TEST(Quantile, LiesBetweenTheValues) {
  EXPECT_DOUBLE_EQ(quantile({7}, 0.1), 7);
  EXPECT_DOUBLE_EQ(quantile({1, 2}, 0.5), 1.5);
  std::vector<double> values(11);
  std::iota(values.begin(), values.end(), 0);
  EXPECT_DOUBLE_EQ(quantile(values, 0.1), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 9);
  EXPECT_DOUBLE_EQ(quantile(values, 0.95), 9.5);
}

// One iteration in twenty that takes a hundred times as long does not change the percentiles, but the mean.
TEST(Disturbed, ByTheMeanOrByTheSpread) {
  EXPECT_FALSE(is_disturbed(1.0, {1.0, 0.9, 1.2}));
  EXPECT_FALSE(is_disturbed(1.25, {1.0, 1.0, 2.0}));
  EXPECT_TRUE(is_disturbed(1.26, {1.0, 1.0, 1.0}));
  EXPECT_TRUE(is_disturbed(1.0, {1.0, 0.9, 1.9}));
}

IterationTimes times(int iters) { return {iters, TickScale({0, 0, 0}, {1000, 1'000'000, 0})}; }  // a tick is 1 us

TEST(IterationTimes, OfOperationsThatTheCallerTimed) {
  IterationTimes t = times(11);
  for (int i = 0; i <= 10; ++i) t.add(i);
  const auto spread = t.finish(2);
  ASSERT_TRUE(spread);
  EXPECT_DOUBLE_EQ(spread->median_s, 2.5);
  EXPECT_DOUBLE_EQ(spread->p10_s, 0.5);
  EXPECT_DOUBLE_EQ(spread->p90_s, 4.5);
}

TEST(IterationTimes, NothingTimedIsNothingKnown) {
  IterationTimes t = times(5);
  t.start();
  EXPECT_FALSE(t.finish(1));
}

// The list does not grow while it is measured, and each time is the mean of one iteration.
TEST(IterationTimes, ManyShortIterationsAreTimedInBatches) {
  const ClockPair first = read_clock_pair();
  while (read_clock_pair().monotonic_ns - first.monotonic_ns < 2'000'000) {
  }
  const TickScale scale(first, read_clock_pair());
  constexpr int kIters = 1'000'000;
  IterationTimes t(kIters, scale);
  const auto begin = std::chrono::steady_clock::now();
  t.start();
  for (int i = 0; i < kIters; ++i) t.lap();
  const double all_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto spread = t.finish(1);
  ASSERT_TRUE(spread);
  EXPECT_GT(spread->p10_s, 0);
  EXPECT_LE(spread->p10_s, spread->median_s);
  EXPECT_LE(spread->median_s, spread->p90_s);
  EXPECT_LE(spread->median_s, 2 * all_s / kIters * 1.1) << "at most half of the times can be above twice the mean";
}

}  // namespace
}  // namespace rondo::tools
