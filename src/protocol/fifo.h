// The FIFO protocol of a connection: one writer, R readers, K lines, and (Simple only) a ring of data.
//
//   step s uses line s mod K:     56 B payload | 8 B flag                              (one cache line)
//   each reader's counter:        number of steps it has finished                      (a cache line each)
//   data ring:                    the messages in flight, one after the other
//
//   writer: wait until s < min(counters) + K; write the payload or the data; store flag(s) with release
//   reader: wait until the line's flag is flag(s), with acquire; read; store its counter := s + 1 with release
//
// *Inline*: a message uses lines only, 56 B in each; one cache line carries data and flag.
// *Simple*: a message is one step. Its data is in the ring, at the place in the line's payload (DataPlace). The writer
// chooses the place: after the previous message, or at the beginning again once a *lap* of bytes was used and the
// beginning is free. A message of kRestartBytes or more also starts at the beginning if the ring is empty. Short
// messages therefore stay in few pages and few cache lines, whatever the ring's size, and long ones in as few as
// possible. Data may also stay in the writer's process if readers can read there (zero-copy send); its place in the
// ring stays reserved (lending.h).
// *Multicast* is R readers on one FIFO: a message is written once and read by all. Unicast is R = 1.
//
// flag(s) = fingerprint of the operation (24 bits) | (s + 1) mod 2^40. The fingerprint depends on the operation's shape
// and on its number in the order of calls (fingerprint_at). A reader that finds its next step with another fingerprint
// has found a mismatch between ranks: another call, or a message left by an earlier call. The step counter may wrap:
// flags are compared for equality, and a stale flag differs by K.
//
// Not here: waiting (spin.h), making connections (src/transport), the meaning of messages (src/engine). Thread safety:
// an end belongs to one thread at a time. For host and device; `Mem` defines the memory orders. Learned from: NCCL's
// Simple and LL protocols (slots and counters; data and flag in one word), MSCCL++'s channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace rondo {

inline constexpr uint32_t kLinePayloadBytes = 56;
inline constexpr uint32_t kFingerprintBits = 24;
inline constexpr uint32_t kFingerprints = (1u << kFingerprintBits) - 1;  // values are 1 .. kFingerprints, never 0
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

/// A connection's memory in one process. Trivially copyable.
struct FifoView {
  HeaderLine* lines = nullptr;  // num_lines
  std::byte* data = nullptr;    // the ring; nullptr: inline only
  ReadCounter* counters = nullptr;
  uint32_t num_lines = 0;   // K, a power of two; at most kMaxDataLines if there is a ring
  uint32_t data_bytes = 0;  // of the ring: room for at least kRingMessages + 1 of the longest messages
};

/// The payload of a Simple message's line: the place of its data.
struct DataPlace {
  uint32_t offset = 0, bytes = 0;  // in the ring
  uint64_t lent_at = 0;            // zero-copy: address in the writer's process; 0: in the ring. May include kRefused
};
/// A bit of DataPlace::lent_at: a reader cannot read there and waits for the data in the ring. No address has this bit.
inline constexpr uint64_t kRefused = uint64_t{1} << 63;
inline constexpr uint32_t kMaxDataLines = 32;
/// Bytes of a message in the ring. Longer ones take whole pages: processors stop prefetching at page ends, otherwise a
/// reader's core would take away the lines that the writer fills next.
constexpr uint32_t place_bytes(uint32_t bytes) {
  const uint32_t unit = bytes <= 1024 ? 64 : 4096;
  return (bytes + unit - 1) / unit * unit;
}
/// Guaranteed number of messages of one call in flight on a connection, wherever its earlier messages are.
inline constexpr uint32_t kRingMessages = 8;
/// Before a message of at least this size a writer checks whether its ring is empty, and then starts at its beginning.
inline constexpr uint32_t kRestartBytes = 256 * 1024;

/// The fingerprint of the messages of call number `sequence` with shape fingerprint `shape`. Equal calls have different
/// fingerprints unless their numbers differ by a multiple of kFingerprints.
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
  /// `readers`: indices of the num_readers counters that limit the room; must outlive the writer.
  RONDO_HOST_DEVICE FifoWriter(const FifoView& view, const uint32_t* readers, uint32_t num_readers,
                               uint64_t first_step = 0)
      : view_(view),
        readers_(readers),
        num_readers_(num_readers),
        step_(first_step),
        limit_(first_step + view.num_lines) {}

  /// True if steps step() .. step() + n - 1 have lines. n <= num_lines.
  RONDO_HOST_DEVICE bool room(uint32_t n) { return step_ + n <= limit_ || (look(), step_ + n <= limit_); }
  /// True if one step has a line and `bytes` > 0 of data have a place; data() is that place until post_data. `lap`: the
  /// range in which messages stay if possible, at least kRingMessages of the call's longest.
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
  /// Makes the message at data() visible. `lent_at`: a zero-copy send; the data is not at data() yet.
  RONDO_HOST_DEVICE void post_data(uint32_t bytes, uint32_t fingerprint, uint64_t lent_at = 0) {
    if (Group::leader()) *reinterpret_cast<DataPlace*>(at(0).payload) = {offset_, bytes, lent_at};
    starts_[step_ % kMaxDataLines] = offset_;
    const uint32_t next = offset_ + place_bytes(bytes);
    offset_ = next < free_end_ ? next : free_end_;
    post(1, fingerprint);
  }
  /// Skips n steps that were written with flags in their data (ll.h, ll128.h).
  RONDO_HOST_DEVICE void advance(uint32_t n) { step_ += n; }
  /// True if all readers have finished a posted message.
  RONDO_HOST_DEVICE bool is_read(uint64_t step) const {
    for (uint32_t i = 0; i < num_readers_; ++i)
      if (step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps) >= step_ - step) return false;
    return true;
  }
  /// True if a reader refused a zero-copy send. If the line was reused, this is a later message's state.
  bool is_refused(uint64_t step) const { return (Mem::load_acquire(&place_of(step)->lent_at) & kRefused) != 0; }
  /// Copies an unread zero-copy send from `data` into the ring, where readers then find it. Later writes to `data` are
  /// never taken for the message. False: it was refused.
  bool bring_in(uint64_t step, const std::byte* data) {
    DataPlace* place = place_of(step);
    std::memcpy(view_.data + starts_[step % kMaxDataLines], data, place->bytes);
    return (Mem::fetch_add(&place->lent_at, uint64_t{0} - reinterpret_cast<uint64_t>(data)) & kRefused) == 0;
  }
  RONDO_HOST_DEVICE uint64_t step() const { return step_; }
  RONDO_HOST_DEVICE uint32_t num_lines() const { return view_.num_lines; }
  RONDO_HOST_DEVICE const FifoView& view() const { return view_; }

  /// Stores the writer's state between launches of a kernel: step, offset, free_end, starts.
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
    limit_ = end.step;  // forces a look at the counters before the first write
    offset_ = end.offset;
    free_end_ = end.free_end;
    for (uint32_t i = 0; i < kMaxDataLines; ++i) starts_[i] = end.starts[i];
  }

 private:
  static constexpr uint32_t kMessagesAhead = 2;  // distance of the prefetch in messages, for writers that run ahead
  RONDO_HOST_DEVICE HeaderLine& at(uint32_t ahead) const {
    return view_.lines[(step_ + ahead) & (view_.num_lines - 1)];
  }
  DataPlace* place_of(uint64_t step) const {
    return reinterpret_cast<DataPlace*>(view_.lines[step & (view_.num_lines - 1)].payload);
  }
  /// The lag of the slowest reader; wrap-safe, because counters never pass the writer.
  RONDO_HOST_DEVICE uint64_t look() {
    uint64_t behind = 0;
    for (uint32_t i = 0; i < num_readers_; ++i) {
      const uint64_t lag = step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps);
      behind = lag > behind ? lag : behind;
    }
    limit_ = step_ - behind + view_.num_lines;
    return behind;
  }
  // The unread data in the ring is from `first` to offset_, possibly around its end. offset_ may advance to free_end_
  // before the counters are read again.
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
  uint32_t starts_[kMaxDataLines] = {};  // start offsets of the latest messages
};

enum class Arrival : uint8_t { kNotYet, kReady, kMismatch };

template <class Mem, class Group>
class FifoReader {
 public:
  FifoReader() = default;
  RONDO_HOST_DEVICE FifoReader(const FifoView& view, uint32_t counter, uint64_t first_step = 0)
      : view_(view), counter_(counter), step_(first_step) {}

  /// Checks whether steps step() .. step() + n - 1 have arrived from the same operation.
  RONDO_HOST_DEVICE Arrival arrived(uint32_t n, uint32_t fingerprint) const {
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t flag = Mem::load_acquire(&at(i).flag);
      if (flag != make_flag(fingerprint, step_ + i)) [[unlikely]]
        return same_step(flag, step_ + i) ? Arrival::kMismatch : Arrival::kNotYet;
    }
    return Arrival::kReady;
  }
  /// After kMismatch: the fingerprint of the arrived message.
  uint32_t found_fingerprint() const {
    return static_cast<uint32_t>(Mem::load_acquire(&at(0).flag) >> (64 - kFingerprintBits));
  }
  /// The arrived message's data in the ring.
  RONDO_HOST_DEVICE const std::byte* data() const {
    return view_.data + reinterpret_cast<const DataPlace*>(at(0).payload)->offset;
  }
  /// The arrived message's address in the writer's process (zero-copy); 0: in the ring.
  uint64_t lent_at() const { return Mem::load_acquire(lent_word()) & ~kRefused; }
  /// After reading there: true if that was the message. False: the writer has moved it into the ring meanwhile.
  bool was_lent() const { return (Mem::fetch_add(lent_word(), 0) & ~kRefused) != 0; }
  /// Asks the writer to put the message into the ring, because it cannot be read at its address.
  void refuse() const { Mem::fetch_or(lent_word(), kRefused); }
  bool is_refused() const { return (Mem::load_acquire(lent_word()) & kRefused) != 0; }
  RONDO_HOST_DEVICE const std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Prefetches n lines of steps that may have arrived.
  RONDO_HOST_DEVICE void prefetch(uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_read(&at(i));
  }
  /// Returns n steps to the writer.
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
