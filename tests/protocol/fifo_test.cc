// The FIFO protocol by itself: order, room, multicast, fingerprints, and the wrap of the 40-bit step.
// labels: unit tsan
#include "protocol/fifo.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "protocol/memory.h"

namespace rondo {
namespace {

using Writer = FifoWriter<HostMem, HostGroup>;
using Reader = FifoReader<HostMem, HostGroup>;

struct Connection {
  static constexpr uint32_t kSlots = 4;
  std::array<HeaderLine, kSlots> lines{};
  std::array<ReadCounter, 3> counters{};
  FifoView view() {
    FifoView v;
    v.lines = lines.data();
    v.counters = counters.data();
    v.num_slots = kSlots;
    return v;
  }
};

TEST(Fifo, RoomEndsAtTheSlotsAndComesBackWithReleases) {
  Connection c;
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  EXPECT_TRUE(w.room(4));
  EXPECT_FALSE(w.room(5));
  w.post(4, 9);
  EXPECT_FALSE(w.room(1));
  EXPECT_EQ(r.arrived(4, 9), Arrival::kReady);
  EXPECT_EQ(r.arrived(1, 9), Arrival::kReady);
  r.release(3);
  EXPECT_TRUE(w.room(3));
  EXPECT_FALSE(w.room(4));
}

TEST(Fifo, AnotherFingerprintAtTheAwaitedStepIsAMismatchAndNothingElseIs) {
  Connection c;
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  EXPECT_EQ(r.arrived(1, 9), Arrival::kNotYet);
  w.post(1, 8);
  EXPECT_EQ(r.arrived(1, 9), Arrival::kMismatch);
  EXPECT_EQ(r.arrived(1, 8), Arrival::kReady);
  EXPECT_EQ(r.arrived(2, 8), Arrival::kNotYet) << "only one of two steps has come";
}

TEST(Fifo, MulticastRoomIsThatOfTheSlowestReader) {
  Connection c;
  const uint32_t readers[] = {0, 2};
  Writer w(c.view(), readers, 2);
  Reader fast(c.view(), 0), slow(c.view(), 2);
  w.post(4, 1);
  fast.release(4);
  EXPECT_FALSE(w.room(1));
  slow.release(1);
  EXPECT_TRUE(w.room(1));
  EXPECT_FALSE(w.room(2));
}

TEST(Fifo, StepsWrapWithoutAStaleFlagPassingForANewOne) {
  const uint64_t start = kStepMask - 5;  // the 40-bit number wraps within the test
  Connection c;
  c.counters[0].steps = start;
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1, start);
  Reader r(c.view(), 0, start);
  for (uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(r.arrived(1, 3), Arrival::kNotYet) << i;
    ASSERT_TRUE(w.room(1)) << i;
    std::memcpy(w.line(0), &i, sizeof i);
    w.post(1, 3);
    ASSERT_EQ(r.arrived(1, 3), Arrival::kReady) << i;
    uint64_t got = 0;
    std::memcpy(&got, r.line(0), sizeof got);
    EXPECT_EQ(got, i);
    r.release(1);
  }
  EXPECT_EQ(w.step(), start + 20);
}

TEST(Fifo, TwoThreadsPassEveryMessageInOrderAcrossTheWrap) {
  constexpr uint64_t kMessages = 20000;
  const uint64_t start = kStepMask - kMessages / 2;
  Connection c;
  c.counters[1].steps = start;
  std::thread writing([&] {
    const uint32_t reader_index = 1;
    Writer w(c.view(), &reader_index, 1, start);
    for (uint64_t i = 0; i < kMessages; ++i) {
      while (!w.room(1)) std::this_thread::yield();
      std::memcpy(w.line(0), &i, sizeof i);
      w.post(1, 5);
    }
  });
  Reader r(c.view(), 1, start);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < kMessages; ++i) {
    while (r.arrived(1, 5) != Arrival::kReady) std::this_thread::yield();
    uint64_t got = 0;
    std::memcpy(&got, r.line(0), sizeof got);
    wrong += got != i;
    r.release(1);
  }
  writing.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace rondo
