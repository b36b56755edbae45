// The FIFO protocol of a connection: one writer, R readers, K slots.
//
//   step s uses slot s mod K:     header line s mod K:  56 B payload | 8 B flag        (one cache line)
//                                 data slot s mod K:    slot_bytes                     (Simple only)
//   each reader's counter:        steps it has finished with                           (a cache line each)
//
//   writer: wait until s < min(counters) + K; write the payload or the data slot; store flag(s) with release
//   reader: wait until the header's flag is flag(s), with acquire; read; store its counter := s + 1 with release
//
// *Inline*: a message travels in header lines alone, 56 B in each, so one cache line brings data and flag together.
// *Simple*: a message is one step; its data lie in the data slot.
// Multicast is R readers on one FIFO: what is written once is read by all. Unicast is R = 1.
//
// flag(s) = fingerprint of the operation (24 bits) | (s + 1) mod 2^40. A reader that finds the step it waits for under
// another fingerprint has found a mismatch between ranks, at no cost on the way that matters. The step counter may
// wrap: flags are compared for equality, and a stale flag differs by K.
//
// Not here: waiting policy (spin.h), which connections exist (src/transport), what a message means (src/engine).
// Thread safety: an end belongs to one thread at a time. Host and device clean: `Mem` holds the memory orders.
// Learned from: NCCL's Simple and LL protocols (slots and counters; data and flag in one word), MSCCL++'s channels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo {

inline constexpr uint32_t kLinePayloadBytes = 56;
inline constexpr uint32_t kFingerprintBits = 24;
inline constexpr uint64_t kStepMask = (uint64_t{1} << 40) - 1;

struct alignas(64) HeaderLine {
  std::byte payload[kLinePayloadBytes];
  uint64_t flag;
};
static_assert(sizeof(HeaderLine) == 64);

struct alignas(64) ReadCounter {
  uint64_t steps;
  std::byte pad[56];
};
static_assert(sizeof(ReadCounter) == 64);

/// A connection's memory as one process sees it. Trivially copyable.
struct FifoView {
  HeaderLine* lines = nullptr;  // num_slots
  std::byte* data = nullptr;    // num_slots * slot_bytes; nullptr: inline only
  ReadCounter* counters = nullptr;
  uint32_t num_slots = 0;  // a power of two
  uint32_t slot_bytes = 0;
};

constexpr uint64_t make_flag(uint32_t fingerprint, uint64_t step) {
  return (static_cast<uint64_t>(fingerprint) << 40) | ((step + 1) & kStepMask);
}
constexpr bool same_step(uint64_t flag, uint64_t step) { return (flag & kStepMask) == ((step + 1) & kStepMask); }

template <class Mem, class Group>
class FifoWriter {
 public:
  FifoWriter() = default;
  /// `readers`: indices of the counters that bound the room, `num_readers` of them; must outlive the writer.
  FifoWriter(const FifoView& view, const uint32_t* readers, uint32_t num_readers, uint64_t first_step = 0)
      : view_(view), readers_(readers), num_readers_(num_readers), step_(first_step),
        limit_(first_step + view.num_slots) {}

  /// True when steps step() .. step() + n - 1 have room. n <= num_slots.
  bool room(uint32_t n) { return step_ + n <= limit_ || refresh(n); }
  std::byte* data() const { return view_.data + (step_ & (view_.num_slots - 1)) * view_.slot_bytes; }
  std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Makes n steps visible to the readers.
  void post(uint32_t n, uint32_t fingerprint) {
    Group::sync();
    if (Group::leader())
      for (uint32_t i = 0; i < n; ++i) Mem::store_release(&at(i).flag, make_flag(fingerprint, step_ + i));
    step_ += n;
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_write(&at(i));
  }
  uint64_t step() const { return step_; }
  uint32_t num_slots() const { return view_.num_slots; }

 private:
  HeaderLine& at(uint32_t ahead) const { return view_.lines[(step_ + ahead) & (view_.num_slots - 1)]; }
  bool refresh(uint32_t n) {
    uint64_t behind = 0;  // by how much the slowest reader lags; wrap-safe, counters never pass the writer
    for (uint32_t i = 0; i < num_readers_; ++i) {
      const uint64_t lag = step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps);
      behind = lag > behind ? lag : behind;
    }
    limit_ = step_ - behind + view_.num_slots;
    return step_ + n <= limit_;
  }
  FifoView view_;
  const uint32_t* readers_ = nullptr;
  uint32_t num_readers_ = 0;
  uint64_t step_ = 0;
  uint64_t limit_ = 0;
};

enum class Arrival : uint8_t { kNotYet, kReady, kMismatch };

template <class Mem, class Group>
class FifoReader {
 public:
  FifoReader() = default;
  FifoReader(const FifoView& view, uint32_t counter, uint64_t first_step = 0)
      : view_(view), counter_(counter), step_(first_step) {}

  /// Whether steps step() .. step() + n - 1 have arrived from the same operation.
  Arrival arrived(uint32_t n, uint32_t fingerprint) const {
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t flag = Mem::load_acquire(&at(i).flag);
      if (flag != make_flag(fingerprint, step_ + i)) [[unlikely]]
        return same_step(flag, step_ + i) ? Arrival::kMismatch : Arrival::kNotYet;
    }
    return Arrival::kReady;
  }
  const std::byte* data() const { return view_.data + (step_ & (view_.num_slots - 1)) * view_.slot_bytes; }
  const std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Gives n slots back to the writer.
  void release(uint32_t n) {
    Group::sync();
    step_ += n;
    if (Group::leader()) Mem::store_release(&view_.counters[counter_].steps, step_);
  }
  uint64_t step() const { return step_; }

 private:
  HeaderLine& at(uint32_t ahead) const { return view_.lines[(step_ + ahead) & (view_.num_slots - 1)]; }
  FifoView view_;
  uint32_t counter_ = 0;
  uint64_t step_ = 0;
};

}  // namespace rondo
