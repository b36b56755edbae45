// LL and LL128 between two threads: flags, messages of any length, and the steps at which flags wrap.
// labels: unit tsan
// links: headers
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "protocol/ll.h"
#include "protocol/ll128.h"
#include "protocol/memory.h"

namespace rondo {
namespace {

constexpr uint32_t kSlots = 4, kMaxBytes = 1000, kName = 0x123456;

// One try to read one line.
Arrival load_ll(const std::byte* line, uint32_t flag, uint64_t& data) {
  WordPair v[1];
  Ll<HostMem>::load(line, 0, v);
  data = Ll<HostMem>::data_of(v[0]);
  return Ll<HostMem>::arrived(line, 0, flag, v);
}
Arrival load_ll128(const std::byte* line, uint32_t piece, uint32_t fingerprint, uint64_t step, WordPair& data) {
  Ll128<HostMem>::Pieces<1> v;
  Ll128<HostMem>::load(line, 0, piece, make_flag(fingerprint, step), v);
  data = v.data[0];
  return Ll128<HostMem>::arrived(line, 0, piece, make_flag(fingerprint, step), v);
}

TEST(Ll, FlagsAreNeverZeroAndTellOperationsApart) {
  for (const uint32_t name : {0u, 1u, 0xffu, 0x010100u, 0xffffffu})
    for (const uint64_t step :
         {uint64_t{0}, uint64_t{kLlStepMask} - 1, uint64_t{kLlStepMask}, uint64_t{kLlStepMask} + 1})
      EXPECT_NE(make_ll_flag(name, step), 0u);
  EXPECT_NE(make_ll_flag(1, 5), make_ll_flag(2, 5));
  EXPECT_EQ(make_ll_flag(1, 5), make_ll_flag(1, 5 + (uint64_t{1} << 24)));  // therefore slots are filled
}

TEST(Ll, LinesArriveWholeOrNotAtAll) {
  alignas(64) std::byte line[kLlLineBytes] = {};
  uint64_t data = 0;
  const uint32_t flag = make_ll_flag(kName, 7);
  EXPECT_EQ(load_ll(line, flag, data), Arrival::kNotYet);
  Ll<HostMem>::store(line, 0x1122334455667788, flag);
  EXPECT_EQ(load_ll(line, flag, data), Arrival::kReady);
  EXPECT_EQ(data, 0x1122334455667788u);
  EXPECT_EQ(load_ll(line, make_ll_flag(kName, 8), data), Arrival::kNotYet);
  EXPECT_EQ(load_ll(line, make_ll_flag(kName + 1, 7), data), Arrival::kMismatch);
  // Half a line: the second word is still the old one.
  uint64_t old[2];
  std::memcpy(old, line, sizeof old);
  Ll<HostMem>::store(line, 1, make_ll_flag(kName, 7 + kSlots));
  std::memcpy(line + 8, &old[1], 8);
  EXPECT_EQ(load_ll(line, make_ll_flag(kName, 7 + kSlots), data), Arrival::kNotYet);
}

// Several lines at once, which arrive out of order: those that were missing are loaded again, the others are kept.
TEST(Ll, SeveralLinesAtOnce) {
  constexpr uint32_t kApart = 2 * kLlLineBytes;
  alignas(64) std::byte lines[4 * kApart] = {};
  const uint32_t flag = make_ll_flag(kName, 7);
  for (const uint32_t u : {3u, 0u, 1u}) Ll<HostMem>::store(lines + u * kApart, 10 + u, flag);
  WordPair v[4];
  Ll<HostMem>::load(lines, kApart, v);
  EXPECT_EQ(Ll<HostMem>::arrived(lines, kApart, flag, v), Arrival::kNotYet);
  Ll<HostMem>::store(lines + 2 * kApart, 12, flag);
  EXPECT_EQ(Ll<HostMem>::arrived(lines, kApart, flag, v), Arrival::kNotYet);
  EXPECT_EQ(Ll<HostMem>::arrived(lines, kApart, flag, v), Arrival::kReady);
  for (uint32_t u = 0; u < 4; ++u) EXPECT_EQ(Ll<HostMem>::data_of(v[u]), 10 + u);
  // One line of another operation is a mismatch, whichever it is and whatever is missing.
  for (uint32_t wrong = 0; wrong < 4; ++wrong) {
    std::memset(lines, 0, sizeof lines);
    Ll<HostMem>::store(lines + wrong * kApart, 1, make_ll_flag(kName + 1, 7));
    Ll<HostMem>::store(lines + (wrong + 1) % 4 * kApart, 1, flag);
    Ll<HostMem>::load(lines, kApart, v);
    EXPECT_EQ(Ll<HostMem>::arrived(lines, kApart, flag, v), Arrival::kMismatch) << wrong;
  }
}

TEST(Ll128, SeveralLinesAtOnce) {
  constexpr uint32_t kApart = 3 * kLl128LineBytes;
  std::vector<std::byte> memory(2 * kApart + 64);
  std::byte* lines = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  const auto store = [&](uint32_t u, uint32_t name) {
    for (uint32_t piece = 0; piece < kLl128Pieces; ++piece)
      Ll128<HostMem>::store(lines + u * kApart, piece, {100 * u + piece, 7}, make_flag(name, 5));
  };
  for (const uint32_t piece : {0u, 7u}) {
    for (const uint32_t late : {0u, 1u}) {
      std::memset(lines, 0, kApart + kLl128LineBytes);
      store(1 - late, kName);
      Ll128<HostMem>::Pieces<2> v;
      Ll128<HostMem>::load(lines, kApart, piece, make_flag(kName, 5), v);
      EXPECT_EQ(Ll128<HostMem>::arrived(lines, kApart, piece, make_flag(kName, 5), v), Arrival::kNotYet);
      store(late, kName);
      EXPECT_EQ(Ll128<HostMem>::arrived(lines, kApart, piece, make_flag(kName, 5), v), Arrival::kNotYet);
      EXPECT_EQ(Ll128<HostMem>::arrived(lines, kApart, piece, make_flag(kName, 5), v), Arrival::kReady);
      for (uint32_t u = 0; u < 2; ++u) EXPECT_EQ(v.data[u].lo, 100 * u + piece);
      store(late, kName + 1);
      Ll128<HostMem>::load(lines, kApart, piece, make_flag(kName, 5), v);
      EXPECT_EQ(Ll128<HostMem>::arrived(lines, kApart, piece, make_flag(kName, 5), v), Arrival::kMismatch);
    }
  }
}

// No line of a slot is older than half the flags, whatever the messages' lengths, so none is mistaken for another.
TEST(Ll, FilledSlotsKeepFlagsYoung) {
  uint64_t last_fill[kSlots] = {};
  uint64_t oldest = 0;
  for (uint64_t step = 0; step < 5 * kLlFillPeriod; ++step) {
    oldest = std::max(oldest, step - last_fill[step % kSlots]);
    if (ll_fills(step, kSlots)) last_fill[step % kSlots] = step;
  }
  EXPECT_LE(oldest, kLlFillPeriod + kSlots);
  EXPECT_LT(oldest, uint64_t{kLlStepMask});
}

// One connection's memory and both of its ends.
struct Connection {
  explicit Connection(uint32_t slot_bytes, uint64_t first_step) : bytes(slot_bytes), slots(kSlots * slot_bytes + 64) {
    view.data = slots.data() + (64 - reinterpret_cast<uintptr_t>(slots.data()) % 64);
    view.counters = &counter;
    view.num_lines = kSlots;
    counter.steps = first_step;
    writer = {view, &index, 1, first_step};
    reader = {view, 0, first_step};
  }
  std::byte* slot(uint64_t step) const { return view.data + slot_offset(step, kSlots, bytes); }
  uint32_t bytes, index = 0;
  std::vector<std::byte> slots;
  alignas(64) ReadCounter counter{};
  FifoView view;
  FifoWriter<HostMem> writer;
  FifoReader<HostMem> reader;
};

uint64_t word_of(uint64_t step, uint64_t i) { return (step * 1000003 + i + 1) * 0x9E3779B97F4A7C15u; }
uint32_t bytes_of(uint64_t step) { return step % 7 == 0 ? kMaxBytes : 8 + static_cast<uint32_t>(step * 40503 % 300); }

// Writes like LL's writers, line by line.
void send_ll(Connection& c) {
  while (!c.writer.room(1)) sched_yield();
  const uint64_t step = c.writer.step();
  const uint32_t flag = make_ll_flag(kName, step);
  const uint64_t lines = ll_lines(bytes_of(step)), all = c.bytes / kLlLineBytes;
  for (uint64_t i = 0; i < (ll_fills(step, kSlots) ? all : lines); ++i)
    Ll<HostMem>::store(c.slot(step) + i * kLlLineBytes, i < lines ? word_of(step, i) : 0, flag);
  c.writer.advance(1);
}
bool receive_ll(Connection& c) {
  const uint64_t step = c.reader.step();
  const uint32_t flag = make_ll_flag(kName, step);
  bool right = true;
  for (uint64_t i = 0; i < ll_lines(bytes_of(step)); ++i) {
    uint64_t data;
    while (load_ll(c.slot(step) + i * kLlLineBytes, flag, data) != Arrival::kReady) sched_yield();
    right &= data == word_of(step, i);
  }
  c.reader.release(1);
  return right;
}
void send_ll128(Connection& c) {
  while (!c.writer.room(1)) sched_yield();
  const uint64_t step = c.writer.step();
  for (uint64_t line = 0; line < ll128_lines(bytes_of(step)); ++line)
    for (uint32_t piece = 0; piece < kLl128Pieces; ++piece) {
      const uint64_t i = line * 15 + 2 * piece;
      Ll128<HostMem>::store(c.slot(step) + line * kLl128LineBytes, piece, {word_of(step, i), word_of(step, i + 1)},
                            make_flag(kName, step));
    }
  c.writer.advance(1);
}
bool receive_ll128(Connection& c) {
  const uint64_t step = c.reader.step();
  bool right = true;
  for (uint64_t line = 0; line < ll128_lines(bytes_of(step)); ++line)
    for (uint32_t piece = 0; piece < kLl128Pieces; ++piece) {
      const uint64_t i = line * 15 + 2 * piece;
      WordPair data;
      while (load_ll128(c.slot(step) + line * kLl128LineBytes, piece, kName, step, data) != Arrival::kReady)
        sched_yield();
      right &= data.lo == word_of(step, i) && (piece == 7 || data.hi == word_of(step, i + 1));
    }
  c.reader.release(1);
  return right;
}

template <class Send, class Receive>
void pass_messages(Connection& c, int n, Send send, Receive receive) {
  std::thread writer([&] {
    for (int i = 0; i < n; ++i) send(c);
  });
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += !receive(c);
  writer.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Ll, MessagesAcrossTheWrapAndTheFilling) {
  for (const uint64_t first : {uint64_t{0}, kLlFillPeriod - 10, 2 * kLlFillPeriod - 100, 4 * kLlFillPeriod - 3}) {
    Connection c(static_cast<uint32_t>(ll_lines(kMaxBytes) * kLlLineBytes), first);
    pass_messages(c, 500, send_ll, receive_ll);
  }
}

TEST(Ll128, Messages) {
  for (const uint64_t first : {uint64_t{0}, kStepMask - 100}) {
    Connection c(static_cast<uint32_t>(ll128_lines(kMaxBytes) * kLl128LineBytes), first);
    pass_messages(c, 500, send_ll128, receive_ll128);
  }
}

TEST(Ll128, OtherOperationsAreMismatches) {
  Connection c(static_cast<uint32_t>(ll128_lines(kMaxBytes) * kLl128LineBytes), 0);
  send_ll128(c);
  WordPair data;
  EXPECT_EQ(load_ll128(c.slot(0), 0, kName + 1, 0, data), Arrival::kMismatch);
  EXPECT_EQ(load_ll128(c.slot(1), 0, kName, 1, data), Arrival::kNotYet);
}

// A line that only a long message reaches, unchanged since 2^24 steps, would have the very flag that a reader waits
// for. The filling in between prevents that.
TEST(Ll, LineOfLongAgoIsNotTakenForAMessage) {
  const uint64_t long_ago = 3, now = long_ago + (uint64_t{1} << 24);
  const uint32_t flag = make_ll_flag(kName, now);
  Connection c(static_cast<uint32_t>(ll_lines(kMaxBytes) * kLlLineBytes), 0);
  std::byte* last_line = c.slot(now) + c.bytes - kLlLineBytes;
  Ll<HostMem>::store(last_line, 99, make_ll_flag(kName, long_ago));
  uint64_t data;
  ASSERT_EQ(load_ll(last_line, flag, data), Arrival::kReady);            // the danger
  const uint64_t fill = kLlFillPeriod + now % kSlots;                    // for the same slot
  ASSERT_TRUE(ll_fills(fill, kSlots));
  Connection later(c.bytes, fill);
  later.view.data = c.view.data;
  later.writer = {later.view, &later.index, 1, fill};
  send_ll(later);
  EXPECT_EQ(load_ll(last_line, flag, data), Arrival::kNotYet);
}

}  // namespace
}  // namespace rondo
