// The FIFO protocol: order, room, multicast, fingerprints, and the wrap of the 40-bit step.
// labels: unit tsan
#include "protocol/fifo.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "protocol/memory.h"

namespace rondo {
namespace {

using Writer = FifoWriter<HostMem>;
using Reader = FifoReader<HostMem>;

struct Connection {
  static constexpr uint32_t kLines = 4;
  std::array<HeaderLine, kLines> lines{};
  std::array<ReadCounter, 3> counters{};
  FifoView view() {
    FifoView v;
    v.lines = lines.data();
    v.counters = counters.data();
    v.num_lines = kLines;
    return v;
  }
};

TEST(Fifo, RoomEndsAtTheLinesAndComesBackWithReleases) {
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

// ---- the data ring ----

constexpr uint32_t kLongestBytes = 9000;  // three pages

struct RingConnection {
  static constexpr uint32_t kLines = 16;
  explicit RingConnection(uint32_t longest_bytes = kLongestBytes) : data(9 * place_bytes(longest_bytes)) {}
  std::array<HeaderLine, kLines> lines{};
  std::array<ReadCounter, 2> counters{};
  std::vector<std::byte> data;
  FifoView view() { return {lines.data(), data.data(), counters.data(), kLines, static_cast<uint32_t>(data.size())}; }
};

void send(Writer& w, uint32_t bytes, uint8_t value) {
  std::memset(w.data(), value, bytes);
  w.post_data(bytes, 7);
}

TEST(FifoRing, MessagesLieOneBehindTheOtherAndGoRoundWithinALap) {
  RingConnection c;
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  const uint32_t bytes = 100, lap = 10 * 128;  // a message takes two cache lines
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(w.room_for(bytes, lap)) << i;
    EXPECT_EQ(w.data() - c.data.data(), i % 10 * 128) << "message " << i;
    send(w, bytes, static_cast<uint8_t>(i));
    ASSERT_EQ(r.arrived(1, 7), Arrival::kReady);
    EXPECT_EQ(static_cast<uint8_t>(*r.data()), static_cast<uint8_t>(i));
    r.release(1);
  }
}

TEST(FifoRing, UsesTheWholeRingInTurnIfTheLapIsAsLong) {
  RingConnection c;
  const uint32_t reader_index = 0, bytes = 4000, num_places = 9 * place_bytes(kLongestBytes) / place_bytes(bytes);
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(w.room_for(bytes, UINT32_MAX)) << i;
    EXPECT_EQ(w.data() - c.data.data(), i % num_places * place_bytes(bytes))
        << "message " << i << ", the ring is empty";
    send(w, bytes, 1);
    r.release(1);
  }
}

// Long messages reuse the same memory, which is in caches. A lap of them would not fit.
TEST(FifoRing, BeginsAnewWhereALongMessageFindsItEmpty) {
  constexpr uint32_t kPlace = place_bytes(kRestartBytes);
  RingConnection c(kRestartBytes);
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  for (const uint32_t unread : {0, 0, 1, 2, 0, 3, 0}) {
    for (uint32_t i = 0; i <= unread; ++i) {
      ASSERT_TRUE(w.room_for(kRestartBytes, 8 * kPlace));
      EXPECT_EQ(w.data() - c.data.data(), i * kPlace) << "behind " << i << " that are not read";
      w.post_data(kRestartBytes, 7);
    }
    r.release(unread + 1);
  }
  ASSERT_TRUE(w.room_for(kRestartBytes - 1, 8 * kPlace));
  EXPECT_EQ(w.data() - c.data.data(), kPlace) << "a shorter one does not look";
}

TEST(FifoRing, GoesRoundBehindAReaderThatIsOneMessageLate) {
  RingConnection c;
  const uint32_t reader_index = 0;
  Writer w(c.view(), &reader_index, 1);
  Reader r(c.view(), 0);
  uint32_t furthest = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(w.room_for(64, 8 * 64)) << i;
    furthest = std::max(furthest, static_cast<uint32_t>(w.data() - c.data.data()));
    send(w, 64, 1);
    if (i > 0) r.release(1);
  }
  EXPECT_LE(furthest, 16 * 64u) << "a lap is 8 messages, and the next look is at most twice as far";
}

TEST(FifoRing, HoldsEightMessagesOfACallWhateverLiesBeforeThem) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const uint32_t longest_of_ring = trial % 4 != 0 ? kLongestBytes : 2 * kRestartBytes;  // some check each time
    RingConnection c(longest_of_ring);
    const uint32_t reader_index = 0;
    Writer w(c.view(), &reader_index, 1);
    Reader r(c.view(), 0);
    uint64_t sent = 0, read = 0;
    for (int call = 0; call < 6; ++call) {
      // The reader finishes the earlier calls, and nothing of this one until the writer has to wait.
      const uint32_t longest = 1 + static_cast<uint32_t>(random() % longest_of_ring);
      const uint32_t lap = random() % 2 == 0 ? place_bytes(longest) * 8 : UINT32_MAX;
      while (read < sent) r.release(1), ++read;
      uint32_t held = 0;
      for (;;) {
        const uint32_t bytes = 1 + static_cast<uint32_t>(random() % longest);
        if (!w.room_for(bytes, lap)) break;
        ASSERT_LE(w.data() + bytes, c.data.data() + c.data.size());
        w.post_data(bytes, 7);
        ++sent, ++held;
      }
      EXPECT_GE(held, kRingMessages) << "trial " << trial << " call " << call;
      for (uint64_t n = random() % (held + 1); n > 0; --n) r.release(1), ++read;
      for (int more = 0; more < 40; ++more) {  // then continue with a randomly late reader
        const uint32_t bytes = 1 + static_cast<uint32_t>(random() % longest);
        if (w.room_for(bytes, lap)) {
          ASSERT_LE(w.data() + bytes, c.data.data() + c.data.size());
          w.post_data(bytes, 7), ++sent;
        } else {
          r.release(1), ++read;
        }
      }
    }
  }
}

TEST(FifoRing, OverwritesNothingThatAReaderHasNotFinishedWith) {
  std::mt19937 random(5);
  struct Case {
    uint64_t start;
    uint32_t longest_bytes;
    int messages;
  };
  for (const auto& [start, longest_of_ring, messages] :
       {Case{0, kLongestBytes, 100000}, Case{kStepMask - 2000, kLongestBytes, 100000},
        Case{0, 2 * kRestartBytes, 2000}}) {
    RingConnection c(longest_of_ring);
    const uint32_t readers[] = {0, 1};
    for (ReadCounter& counter : c.counters) counter.steps = start;
    Writer w(c.view(), readers, 2, start);
    Reader both[] = {{c.view(), 0, start}, {c.view(), 1, start}};
    struct Sent {
      uint32_t bytes;
      uint8_t value;
    };
    std::deque<Sent> under_way[2];
    uint32_t longest = longest_of_ring;
    uint8_t value = 0;
    for (int i = 0; i < messages; ++i) {
      if (random() % 1000 == 0) longest = 1 + static_cast<uint32_t>(random() % longest_of_ring);
      const uint32_t messages_of_lap = 8 + 24 * (random() % 2);
      const uint32_t lap = random() % 3 == 0 ? UINT32_MAX : place_bytes(longest) * messages_of_lap;
      const uint32_t bytes = 1 + static_cast<uint32_t>(random() % longest);
      if (random() % 2 == 0 && w.room_for(bytes, lap)) {
        ASSERT_LE(w.data() + bytes, c.data.data() + c.data.size());
        send(w, bytes, ++value);
        for (auto& queue : under_way) queue.push_back({bytes, value});
      }
      const size_t who = random() % 2;
      if (under_way[who].empty()) continue;
      ASSERT_EQ(both[who].arrived(1, 7), Arrival::kReady);
      const Sent expected = under_way[who].front();
      const std::vector<std::byte> whole(expected.bytes, static_cast<std::byte>(expected.value));
      ASSERT_EQ(std::memcmp(both[who].data(), whole.data(), whole.size()), 0) << "message " << i;
      both[who].release(1);
      under_way[who].pop_front();
    }
  }
}

}  // namespace
}  // namespace rondo
