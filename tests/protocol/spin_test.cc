// How long a thread waits awake.
#include "protocol/spin.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace rondo {
namespace {

TEST(Spin, ThreadsThatShareCoresWithCallersSleepSoon) {
  const SpinSettings roomy = spin_settings(1, 2), full = spin_settings(2, 2), crowded = spin_settings(3, 2);
  EXPECT_FALSE(roomy.crowded || roomy.callers_compete);
  EXPECT_TRUE(!full.crowded && full.callers_compete);
  EXPECT_TRUE(crowded.crowded && crowded.callers_compete);
  EXPECT_EQ(roomy.in_background().yield_us, roomy.yield_us);
  EXPECT_EQ(roomy.in_background().pauses, roomy.pauses);
  EXPECT_LE(full.in_background().yield_us * 10, full.yield_us);
  EXPECT_LT(full.in_background().pauses, full.pauses);
}

struct Patient : WaitObserver {
  bool urgent() override { return false; }
  bool give_up(uint64_t) override { return false; }
};

// Announced, so that its peers ring; nobody does, and the bounded sleep ends.
TEST(Spin, ASleepIsAnnouncedAndEnds) {
  Doorbell bell{};
  Patient observer;
  HostSpin spin(spin_settings(2, 2).in_background(), observer, &bell);
  while (!spin.about_to_sleep()) ASSERT_TRUE(spin.idle());
  EXPECT_EQ(bell.asleep, 1u);
  EXPECT_TRUE(spin.idle());
}

uint64_t turn_ns() {
  uint64_t attributes[7] = {};  // the fourth: the runtime
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
  // A kernel without them says 0, or what it had.
  if (before > 100000) EXPECT_EQ(in_thread, 100000u);
  else EXPECT_LE(in_thread, 100000u);
}

}  // namespace
}  // namespace rondo
