// The hand-over between two cores has a plausible time. Measuring it does not move the caller.
// labels: unit
#include "topology/handover.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace rondo {
namespace {

cpu_set_t cpus_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

TEST(Handover, IsPlausibleAndLeavesTheCallersCpus) {
  const cpu_set_t before = cpus_of_this_thread();
  const auto start = std::chrono::steady_clock::now();
  const std::optional<double> ns = measure_handover_ns();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const cpu_set_t after = cpus_of_this_thread();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  if (!ns) GTEST_SKIP() << "one core, or other work used the cores";
  EXPECT_GT(*ns, 5);
  EXPECT_LT(*ns, 1e5);
}

TEST(Handover, AThreadOfOneCoreUsesTheCgroups) {
  const cpu_set_t before = cpus_of_this_thread();
  if (two_cpus()[1] < 0) GTEST_SKIP() << "one core";
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++c)
    if (CPU_ISSET(c, &before)) CPU_SET(c, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const std::optional<double> ns = measure_handover_ns();
  if (ns) {
    EXPECT_GT(*ns, 5);  // not the time of two threads that share a core
    EXPECT_LT(*ns, 1e5);
  }
  const cpu_set_t after = cpus_of_this_thread();
  EXPECT_TRUE(CPU_EQUAL(&one, &after));
  const auto [a, b] = two_cpus();
  EXPECT_GE(b, 0);
  EXPECT_NE(a, b);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

// Many threads that measure at once, as in a process whose threads make communicators, end in time.
TEST(Handover, ManyAtOnceEnd) {
  const auto start = std::chrono::steady_clock::now();
  std::thread threads[8];
  for (std::thread& t : threads) t = std::thread([] { measure_handover_ns(); });
  for (std::thread& t : threads) t.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace rondo
