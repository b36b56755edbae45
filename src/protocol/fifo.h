// The FIFO protocol of a connection: one writer, R readers, K lines, and (Simple only) a ring of data.
//
//   step s uses line s mod K:     56 B payload | 8 B flag                              (one cache line)
//   each reader's counter:        steps it has finished with                           (a cache line each)
//   data ring:                    the messages under way, one behind the other
//
//   writer: wait until s < min(counters) + K; write the payload or the data; store flag(s) with release
//   reader: wait until the line's flag is flag(s), with acquire; read; store its counter := s + 1 with release
//
// *Inline*: a message travels in lines alone, 56 B in each, so one cache line brings data and flag together.
// *Simple*: a message is one step; its data lie in the ring, where the line's payload says (DataPlace). The writer
// alone decides where: behind the message before, and from the beginning again as soon as a *lap* of bytes was used and
// the beginning is free; before a message of kRestartBytes also as soon as the ring is empty. So short messages stay in
// few pages and few cache lines, however large the ring is, and long ones in as few as can be. Data may
// also stay where the writer's process has them, for readers that can read there; their place in the ring is kept
// (lending.h).
// Multicast is R readers on one FIFO: what is written once is read by all. Unicast is R = 1.
//
// flag(s) = fingerprint of the operation (24 bits) | (s + 1) mod 2^40. The fingerprint depends on the operation's shape
// and on its number in the order of calls (fingerprint_at). A reader that finds its next step under another fingerprint
// has found a mismatch between ranks: another call, or a message that an earlier call left behind. The step counter may
// wrap: flags are compared for equality, and a stale flag differs by K.
//
// Not here: waiting policy (spin.h), which connections exist (src/transport), what a message means (src/engine).
// Thread safety: an end belongs to one thread at a time. Host and device clean: `Mem` holds the memory orders.
// Learned from: NCCL's Simple and LL protocols (slots and counters; data and flag in one word), MSCCL++'s channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace rondo {

inline constexpr uint32_t kLinePayloadBytes = 56;
inline constexpr uint32_t kFingerprintBits = 24;
inline constexpr uint32_t kFingerprints = (1u << kFingerprintBits) - 1;  // they are 1 .. kFingerprints, never 0
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
  HeaderLine* lines = nullptr;  // num_lines
  std::byte* data = nullptr;    // the ring; nullptr: inline only
  ReadCounter* counters = nullptr;
  uint32_t num_lines = 0;   // K, a power of two; at most kMaxDataLines where there is a ring
  uint32_t data_bytes = 0;  // of the ring: at least kRingMessages + 1 of the longest messages
};

/// The payload of a Simple message's line: where its data lie.
struct DataPlace {
  uint32_t offset = 0, bytes = 0;  // in the ring
  uint64_t lent_at = 0;            // in the writer's process, not yet in the ring; 0: in the ring. With kRefused or not
};
/// Of DataPlace::lent_at: a reader cannot read there, and waits for the data in the ring. No address has this bit.
inline constexpr uint64_t kRefused = uint64_t{1} << 63;
inline constexpr uint32_t kMaxDataLines = 32;
/// What a message takes of the ring. Longer ones take whole pages, at whose ends a processor stops fetching ahead: a
/// reader's core would otherwise take away the lines that the writer is about to fill.
constexpr uint32_t place_bytes(uint32_t bytes) {
  const uint32_t unit = bytes <= 1024 ? 64 : 4096;
  return (bytes + unit - 1) / unit * unit;
}
/// At least so many messages of one call can be under way on a connection, however its earlier messages lie.
inline constexpr uint32_t kRingMessages = 8;
/// Before a message of so many bytes or more a writer looks whether its ring is empty, and then begins it anew.
inline constexpr uint32_t kRestartBytes = 256 * 1024;

/// The fingerprint of the messages of call number `sequence`, whose shape alone has the fingerprint `shape`. Equal
/// calls with different numbers never share one, unless the numbers differ by a multiple of kFingerprints.
constexpr uint32_t call_index(uint64_t sequence) { return static_cast<uint32_t>(sequence % kFingerprints); }
constexpr uint32_t fingerprint_at(uint32_t shape, uint32_t call_index) {
  const uint32_t sum = shape + call_index;
  return sum > kFingerprints ? sum - kFingerprints : sum;
}
constexpr uint64_t make_flag(uint32_t fingerprint, uint64_t step) {
  return (static_cast<uint64_t>(fingerprint) << 40) | ((step + 1) & kStepMask);
}
constexpr bool same_step(uint64_t flag, uint64_t step) { return (flag & kStepMask) == ((step + 1) & kStepMask); }

template <class Mem, class Group>
class FifoWriter {
 public:
  FifoWriter() = default;
  /// `readers`: indices of the counters that bound the room, `num_readers` of them; must outlive the writer.
  RONDO_HOST_DEVICE FifoWriter(const FifoView& view, const uint32_t* readers, uint32_t num_readers,
                               uint64_t first_step = 0)
      : view_(view),
        readers_(readers),
        num_readers_(num_readers),
        step_(first_step),
        limit_(first_step + view.num_lines) {}

  /// True when steps step() .. step() + n - 1 have lines. n <= num_lines.
  RONDO_HOST_DEVICE bool room(uint32_t n) { return step_ + n <= limit_ || (look(), step_ + n <= limit_); }
  /// True when one step has a line and `bytes` > 0 of data have a place; data() is that place until it is posted.
  /// `lap`: the bytes in which messages shall stay if they can; at least kRingMessages places of the longest that the
  /// call sends.
  RONDO_HOST_DEVICE bool room_for(uint32_t bytes, uint32_t lap) {
    return (bytes < kRestartBytes && step_ < limit_ && offset_ + bytes <= free_end_) || find_place(bytes, lap);
  }
  RONDO_HOST_DEVICE std::byte* data() const { return view_.data + offset_; }
  RONDO_HOST_DEVICE std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Makes n steps visible to the readers.
  RONDO_HOST_DEVICE void post(uint32_t n, uint32_t fingerprint) {
    Group::sync();
    if (Group::leader())
      for (uint32_t i = 0; i < n; ++i) Mem::store_release(&at(i).flag, make_flag(fingerprint, step_ + i));
    step_ += n;
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_write(&at(kMessagesAhead * n + i));
  }
  /// Makes the message at data() visible. `lent_at`: it is not there yet.
  RONDO_HOST_DEVICE void post_data(uint32_t bytes, uint32_t fingerprint, uint64_t lent_at = 0) {
    if (Group::leader()) *reinterpret_cast<DataPlace*>(at(0).payload) = {offset_, bytes, lent_at};
    starts_[step_ % kMaxDataLines] = offset_;
    const uint32_t next = offset_ + place_bytes(bytes);
    offset_ = next < free_end_ ? next : free_end_;
    post(1, fingerprint);
  }
  /// n steps were written whose flags travel with their data (ll.h, ll128.h).
  RONDO_HOST_DEVICE void advance(uint32_t n) { step_ += n; }
  /// Of a message that was posted: whether all readers have finished with it.
  RONDO_HOST_DEVICE bool is_read(uint64_t step) const {
    for (uint32_t i = 0; i < num_readers_; ++i)
      if (step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps) >= step_ - step) return false;
    return true;
  }
  /// Of one that was lent: whether a reader cannot read it where it lies. Its line may have come round: then of a later
  /// one.
  bool is_refused(uint64_t step) const { return (Mem::load_acquire(&place_of(step)->lent_at) & kRefused) != 0; }
  /// Of one that was lent at `data` and is not read: puts it into the ring, from where it is read from now on. What is
  /// written to `data` after this, no reader takes for the message. False: it was refused.
  bool bring_in(uint64_t step, const std::byte* data) {
    DataPlace* place = place_of(step);
    std::memcpy(view_.data + starts_[step % kMaxDataLines], data, place->bytes);
    return (Mem::fetch_add(&place->lent_at, uint64_t{0} - reinterpret_cast<uint64_t>(data)) & kRefused) == 0;
  }
  RONDO_HOST_DEVICE uint64_t step() const { return step_; }
  RONDO_HOST_DEVICE uint32_t num_lines() const { return view_.num_lines; }
  RONDO_HOST_DEVICE const FifoView& view() const { return view_; }

  /// Where a writer stands, to be carried from one launch of a kernel to the next: step, offset, free_end, starts.
  template <class End>
  RONDO_HOST_DEVICE void store_to(End& end) const {
    end.step = step_;
    end.offset = offset_;
    end.free_end = free_end_;
    for (uint32_t i = 0; i < kMaxDataLines; ++i) end.starts[i] = starts_[i];
  }
  template <class End>
  RONDO_HOST_DEVICE void load_from(const End& end) {
    view_ = end.view;
    readers_ = end.readers;
    num_readers_ = end.num_readers;
    step_ = end.step;
    limit_ = end.step;  // looks at the counters before it writes
    offset_ = end.offset;
    free_end_ = end.free_end;
    for (uint32_t i = 0; i < kMaxDataLines; ++i) starts_[i] = end.starts[i];
  }

 private:
  static constexpr uint32_t kMessagesAhead = 2;  // when a writer runs ahead, a line comes later than the next message
  RONDO_HOST_DEVICE HeaderLine& at(uint32_t ahead) const {
    return view_.lines[(step_ + ahead) & (view_.num_lines - 1)];
  }
  DataPlace* place_of(uint64_t step) const {
    return reinterpret_cast<DataPlace*>(view_.lines[step & (view_.num_lines - 1)].payload);
  }
  /// How far the slowest reader lags; wrap-safe, counters never pass the writer.
  RONDO_HOST_DEVICE uint64_t look() {
    uint64_t behind = 0;
    for (uint32_t i = 0; i < num_readers_; ++i) {
      const uint64_t lag = step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps);
      behind = lag > behind ? lag : behind;
    }
    limit_ = step_ - behind + view_.num_lines;
    return behind;
  }
  // The ring holds what the readers have not finished with: from `first` to offset_, perhaps round its end. free_end_
  // is how far offset_ may go before the counters are looked at again.
  RONDO_HOST_DEVICE bool find_place(uint32_t bytes, uint32_t lap) {
    const uint64_t behind = look();
    if (behind == 0) {
      offset_ = 0;
      free_end_ = lap < view_.data_bytes ? lap : view_.data_bytes;
      return true;
    }
    const uint32_t first = starts_[(step_ - behind) % kMaxDataLines];
    if (offset_ > first) {
      const bool to_begin = (offset_ >= lap || offset_ + bytes > view_.data_bytes) && bytes <= first;
      if (to_begin) {
        offset_ = 0;
        free_end_ = first;
      } else {
        const uint32_t next = offset_ + place_bytes(bytes), later = next > 2 * offset_ ? next : 2 * offset_;
        free_end_ = later < view_.data_bytes ? later : view_.data_bytes;
      }
    } else {
      free_end_ = first;
    }
    return step_ < limit_ && offset_ + bytes <= free_end_;
  }
  FifoView view_;
  const uint32_t* readers_ = nullptr;
  uint32_t num_readers_ = 0;
  uint32_t offset_ = 0, free_end_ = 0;  // in the ring
  uint64_t step_ = 0;
  uint64_t limit_ = 0;
  uint32_t starts_[kMaxDataLines] = {};  // where the last messages begin
};

enum class Arrival : uint8_t { kNotYet, kReady, kMismatch };

template <class Mem, class Group>
class FifoReader {
 public:
  FifoReader() = default;
  RONDO_HOST_DEVICE FifoReader(const FifoView& view, uint32_t counter, uint64_t first_step = 0)
      : view_(view), counter_(counter), step_(first_step) {}

  /// Whether steps step() .. step() + n - 1 have arrived from the same operation.
  RONDO_HOST_DEVICE Arrival arrived(uint32_t n, uint32_t fingerprint) const {
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t flag = Mem::load_acquire(&at(i).flag);
      if (flag != make_flag(fingerprint, step_ + i)) [[unlikely]]
        return same_step(flag, step_ + i) ? Arrival::kMismatch : Arrival::kNotYet;
    }
    return Arrival::kReady;
  }
  /// After kMismatch: the fingerprint of the message that has arrived.
  uint32_t found_fingerprint() const {
    return static_cast<uint32_t>(Mem::load_acquire(&at(0).flag) >> (64 - kFingerprintBits));
  }
  /// Of the message that has arrived.
  RONDO_HOST_DEVICE const std::byte* data() const {
    return view_.data + reinterpret_cast<const DataPlace*>(at(0).payload)->offset;
  }
  /// Of the message that has arrived: where it lies in its writer's process; 0: in the ring.
  uint64_t lent_at() const { return Mem::load_acquire(lent_word()) & ~kRefused; }
  /// After it was read there: whether that was the message. False: it has come into the ring meanwhile.
  bool was_lent() const { return (Mem::fetch_add(lent_word(), 0) & ~kRefused) != 0; }
  /// It cannot be read there: the writer is to put it into the ring.
  void refuse() const { Mem::fetch_or(lent_word(), kRefused); }
  bool is_refused() const { return (Mem::load_acquire(lent_word()) & kRefused) != 0; }
  RONDO_HOST_DEVICE const std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Of steps that have perhaps arrived: fetches n lines from there on.
  RONDO_HOST_DEVICE void prefetch(uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_read(&at(i));
  }
  /// Gives n steps back to the writer.
  RONDO_HOST_DEVICE void release(uint32_t n) {
    Group::sync();
    step_ += n;
    if (Group::leader()) Mem::store_release(&view_.counters[counter_].steps, step_);
  }
  RONDO_HOST_DEVICE uint64_t step() const { return step_; }
  RONDO_HOST_DEVICE const FifoView& view() const { return view_; }

 private:
  RONDO_HOST_DEVICE HeaderLine& at(uint32_t ahead) const {
    return view_.lines[(step_ + ahead) & (view_.num_lines - 1)];
  }
  uint64_t* lent_word() const { return &reinterpret_cast<DataPlace*>(at(0).payload)->lent_at; }
  FifoView view_;
  uint32_t counter_ = 0;
  uint64_t step_ = 0;
};

}  // namespace rondo
