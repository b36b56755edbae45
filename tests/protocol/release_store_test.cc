// The release store of the FIFO protocol orders the data: for ThreadSanitizer and the mutation build.
// labels: unit tsan
// links: headers
//
// Only flags and counters may order the plain (non-atomic) accesses of payload and data ring. Under ThreadSanitizer a
// build with RONDO_MUTATE_RELEASE_STORE must fail here with a data race (scripts/ci_mutation.sh checks that). Without a
// sanitizer the tests check values. Nothing else orders the threads: no mutex, no condition variable, one thread per
// end.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "protocol/fifo.h"
#include "protocol/memory.h"

namespace rondo {
namespace {

using Writer = FifoWriter<HostMem>;
using Reader = FifoReader<HostMem>;

constexpr uint32_t kLines = 4;
constexpr uint32_t kMessageBytes = 256;
constexpr uint32_t kLapBytes = kRingMessages * kMessageBytes, kRingBytes = kLapBytes + kMessageBytes;
constexpr uint64_t kSteps = 2000;
constexpr uint32_t kFingerprint = 0xabcdef;

/// A FIFO's memory, as a transport would allocate it.
struct FifoMemory {
  explicit FifoMemory(uint32_t num_readers) : lines(kLines), data(kRingBytes), counters(num_readers) {
    for (HeaderLine& line : lines) std::memset(&line, 0, sizeof line);
    for (ReadCounter& counter : counters) std::memset(&counter, 0, sizeof counter);
  }
  FifoView view() { return {lines.data(), data.data(), counters.data(), kLines, kRingBytes}; }
  std::vector<HeaderLine> lines;
  std::vector<std::byte> data;
  std::vector<ReadCounter> counters;
};

/// Repeats `ready` until it is true. Returns false after the deadline.
template <class Ready>
bool wait_for(Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!ready()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

uint64_t word_of(uint64_t step, uint64_t index) { return step * 1000 + index; }

void fill(std::byte* to, uint64_t bytes, uint64_t step) {
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    const uint64_t word = word_of(step, i);
    std::memcpy(to + 8 * i, &word, 8);
  }
}

uint64_t count_wrong(const std::byte* from, uint64_t bytes, uint64_t step) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, from + 8 * i, 8);
    wrong += word != word_of(step, i);
  }
  return wrong;
}

/// One writer and `num_readers` readers, each a thread. `write` and `read` access the memory of one step. `data_bytes`:
/// of a message in the ring; 0: in its line.
template <class Write, class Read>
void run_steps(uint32_t num_readers, uint64_t first_step, uint32_t data_bytes, Write write, Read read) {
  FifoMemory memory(num_readers);
  for (ReadCounter& counter : memory.counters) counter.steps = first_step;
  std::vector<uint32_t> indices(num_readers);
  for (uint32_t i = 0; i < num_readers; ++i) indices[i] = i;
  std::vector<uint64_t> wrong(num_readers, 0), done(num_readers, 0);

  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < num_readers; ++r)
    threads.emplace_back([&, r] {
      Reader reader(memory.view(), r, first_step);
      for (uint64_t i = 0; i < kSteps; ++i, ++done[r]) {
        if (!wait_for([&] { return reader.arrived(1, kFingerprint) == Arrival::kReady; })) return;
        wrong[r] += read(reader, i);
        reader.release(1);
      }
    });
  Writer writer(memory.view(), indices.data(), num_readers, first_step);
  bool had_room = true;
  for (uint64_t i = 0; i < kSteps && had_room; ++i) {
    had_room = wait_for([&] { return data_bytes != 0 ? writer.room_for(data_bytes, kLapBytes) : writer.room(1); });
    if (!had_room) break;
    write(writer, i);
    if (data_bytes != 0) writer.post_data(data_bytes, kFingerprint);
    else writer.post(1, kFingerprint);
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(had_room);
  for (uint32_t r = 0; r < num_readers; ++r) {
    EXPECT_EQ(done[r], kSteps) << "reader " << r;
    EXPECT_EQ(wrong[r], 0u) << "reader " << r;
  }
}

TEST(ReleaseStore, OrdersTheInlinePayload) {
  constexpr uint64_t kBytes = kLinePayloadBytes;
  run_steps(
      1, 0, 0, [](Writer& w, uint64_t step) { fill(w.line(0), kBytes, step); },
      [](Reader& r, uint64_t step) { return count_wrong(r.line(0), kBytes, step); });
}

TEST(ReleaseStore, OrdersTheDataRing) {
  run_steps(
      1, 0, kMessageBytes, [](Writer& w, uint64_t step) { fill(w.data(), kMessageBytes, step); },
      [](Reader& r, uint64_t step) { return count_wrong(r.data(), kMessageBytes, step); });
}

TEST(ReleaseStore, OrdersReuseOfTheRingAmongSeveralReaders) {
  run_steps(
      3, 0, kMessageBytes, [](Writer& w, uint64_t step) { fill(w.data(), kMessageBytes, step); },
      [](Reader& r, uint64_t step) { return count_wrong(r.data(), kMessageBytes, step); });
}

TEST(ReleaseStore, HoldsWhereTheStepOfAFlagWraps) {
  run_steps(
      2, kStepMask - kSteps / 2, kMessageBytes, [](Writer& w, uint64_t step) { fill(w.data(), kMessageBytes, step); },
      [](Reader& r, uint64_t step) { return count_wrong(r.data(), kMessageBytes, step); });
}

}  // namespace
}  // namespace rondo
