// How long a thread spins, and on which core.
#include "protocol/spin.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "support/cpu_masks.h"

namespace rondo {
namespace {

using testing::cpu_mask;
using testing::set_cpu_mask;

TEST(Spin, ThreadsThatShareCoresWithCallersSleepSoon) {
  const SpinSettings roomy = spin_settings(1, 2), full = spin_settings(2, 2), oversubscribed = spin_settings(3, 2);
  EXPECT_FALSE(roomy.oversubscribed || roomy.callers_compete);
  EXPECT_TRUE(!full.oversubscribed && full.callers_compete);
  EXPECT_TRUE(oversubscribed.oversubscribed && oversubscribed.callers_compete);
  EXPECT_EQ(roomy.in_background().yield_us, roomy.yield_us);
  EXPECT_EQ(roomy.in_background().pauses, roomy.pauses);
  EXPECT_LE(full.in_background().yield_us * 10, full.yield_us);
  EXPECT_LT(full.in_background().pauses, full.pauses);
}

struct Patient : WaitObserver {
  bool urgent() override { return false; }
  bool check_wait(uint64_t) override { return false; }
};

uint32_t load_asleep(const Doorbell& b) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(b.asleep)).load(std::memory_order_acquire);
}

// Announced, so that its peers ring. None does, and the bounded sleep ends.
TEST(Spin, ASleepIsAnnouncedAndEnds) {
  Doorbell bell{};
  Patient observer;
  HostSpin spin(spin_settings(2, 2).in_background(), observer, &bell);
  while (bell.asleep == 0) ASSERT_TRUE(spin.idle());
  EXPECT_TRUE(spin.idle());
}

// Without a ring it sleeps for the whole limit. A ring of the last bell ends the sleep.
TEST(Spin, AnyOfItsBellsWakesAThread) {
  constexpr uint64_t kLimitNs = HostSpin::kMaxSleepUs * 1000;
  Doorbell bells[3] = {};
  Doorbell* const more[] = {&bells[1], &bells[2]};
  const auto sleep_ns = [&] {
    Patient observer;
    HostSpin spin(spin_settings(2, 2).in_background(), observer, &bells[0], more);
    for (Doorbell& b : bells) std::atomic_ref<uint32_t>(b.asleep).store(0);
    while (load_asleep(bells[0]) == 0) EXPECT_TRUE(spin.idle());
    const uint64_t start = monotonic_ns();
    EXPECT_TRUE(spin.idle());
    return monotonic_ns() - start;
  };
  EXPECT_GE(sleep_ns(), kLimitNs * 9 / 10);
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < 50 && shortest > kLimitNs / 2; ++i) {
    std::thread ringer([&] {
      while (load_asleep(bells[2]) == 0) std::this_thread::yield();
      while (load_asleep(bells[2]) != 0) ring(bells[2]), std::this_thread::yield();
    });
    shortest = std::min(shortest, sleep_ns());
    ringer.join();
  }
  EXPECT_LE(shortest, kLimitNs / 2);
}

struct Counting : Patient {
  void rebalance() override { ++num_looks; }
  int num_looks = 0;
};

// A rank with a home core checks it often. Its progress thread does not.
TEST(Spin, WhoHasAHomeLooksWhetherItIsThere) {
  const auto num_looks = [](int home, bool in_background) {
    SpinSettings settings = spin_settings(1, 1);
    settings.pauses = 0;
    settings.home_cpu = home;
    Doorbell bell{};
    Counting observer;
    HostSpin spin(in_background ? settings.in_background() : settings, observer, &bell);
    for (int i = 0; i < 320; ++i) {
      EXPECT_TRUE(spin.idle());
      spin.moved();  // otherwise it would sleep
    }
    return observer.num_looks;
  };
  EXPECT_EQ(num_looks(0, false), 10);
  EXPECT_EQ(num_looks(0, true), 0);
  EXPECT_EQ(num_looks(-1, false), 0);
}

TEST(Spin, AThreadGoesToACpuAndKeepsItsMask) {
  const std::vector<int> all = cpu_mask();
  if (all.size() < 2) GTEST_SKIP() << "needs two CPUs";
  std::thread([&] {
    EXPECT_EQ(nth_cpu(0), all[0]);
    EXPECT_EQ(nth_cpu(1), all[1]);
    EXPECT_EQ(nth_cpu(static_cast<int>(all.size()) + 1), all[1]);
    int num_there = 0;
    for (int i = 0; i < 20; ++i) {
      const int cpu = all[static_cast<size_t>(i) % 2];
      go_to_cpu(cpu);
      if (sched_getcpu() == cpu) ++num_there;  // it may have been moved again
      EXPECT_EQ(cpu_mask(), all);
    }
    EXPECT_GE(num_there, 15);
    set_cpu_mask({all[0]});
    go_to_cpu(all[1]);
    go_to_cpu(-1);
    EXPECT_EQ(cpu_mask(), std::vector<int>{all[0]}) << "it may not go there";
    EXPECT_EQ(sched_getcpu(), all[0]);
  }).join();
}

uint64_t turn_ns() {
  uint64_t attributes[7] = {};  // the fourth value is the runtime
  return syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) == 0 ? attributes[3] : 0;
}

TEST(Spin, ShortTurnsAreTheThreadsOwn) {
  const uint64_t before = turn_ns();
  uint64_t in_thread = 0;
  std::thread([&] {
    take_short_turns();
    in_thread = turn_ns();
  }).join();
  EXPECT_EQ(turn_ns(), before);
  // A kernel without them returns 0 or the old value.
  if (before > 100000) EXPECT_EQ(in_thread, 100000u);
  else EXPECT_LE(in_thread, 100000u);
}

}  // namespace
}  // namespace rondo
