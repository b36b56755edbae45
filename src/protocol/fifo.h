// The FIFO protocol of a connection. It has one writer, R readers, K lines, and (Simple only) a data ring.
//
//   step s uses line s mod K:     56 B payload | 8 B flag                              (one cache line)
//   each reader's counter:        number of steps that it has finished                 (a cache line each)
//   data ring:                    the messages in flight, one after the other
//
//   writer: wait until s < min(counters) + K; write the payload or the data; store flag(s) with release
//   reader: wait until the line's flag is flag(s), with acquire; read; store its counter := s + 1 with release
//
// *Inline*: a message uses only lines, with 56 B in each. One cache line contains data and flag.
// *Simple*: a message is one step. Its data is in the ring. The line's payload contains the offset (DataPlace). The
// writer chooses the offset. It is after the previous message, or at the beginning of the ring when a *lap* of bytes
// was used and the beginning is free. A message of kRestartBytes or more also starts at the beginning if the ring is
// empty. Messages therefore use few pages and few cache lines, whatever the size of the ring. With a lap as long as the
// ring, messages never begin anew before its end. The planner chooses the lap, because some processors read another
// core's recent writes slowly. The data may also stay in a buffer of the writer's process (zero-copy send,
// zero_copy.h). The message's part of the ring stays reserved.
// *Multicast* has R readers on one FIFO. A message is written once, and all of them read it. Unicast is R = 1.
//
// flag(s) = fingerprint of the operation (24 bits) | (s + 1) mod 2^40. The fingerprint depends on the operation's shape
// and on its number in the order of calls (fingerprint_at). If a reader finds its next step with another fingerprint,
// the ranks disagree: the writer made another call, or the message is from an earlier call. The step number may wrap:
// flags are only compared for equality, and the step in a line's old flag is smaller by K.
//
// Other files do the rest: waiting (spin.h), making connections (src/transport), the meaning of messages (src/engine).
// Thread safety: an end belongs to one thread at a time; in a kernel, barriers of the block separate the uses of an
// end. For host and device; `Mem` defines the memory orders. Learned from: NCCL's Simple and LL protocols (slots and
// counters; data and flag in one word), MSCCL++'s channels.
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
  uint32_t data_bytes = 0;  // of the ring: enough for at least kRingMessages + 1 of the longest messages
};

/// The payload of a Simple message's line. It shows where the data is.
struct DataPlace {
  uint32_t offset = 0, bytes = 0;  // in the ring
  uint64_t zero_copy_at = 0;       // address in the writer's process; 0: the data is in the ring. May include kRefused
};
/// A bit of DataPlace::zero_copy_at. It means that a reader cannot read there and waits for the data in the ring. No
/// address has this bit.
inline constexpr uint64_t kRefused = uint64_t{1} << 63;
inline constexpr uint32_t kMaxDataLines = 32;
/// Returns the bytes that a message takes in the ring. Messages of more than 1 KiB take whole pages. If two
/// messages shared a page, the reader's core would prefetch lines that the writer fills next; prefetching stops at page
/// ends.
constexpr uint32_t place_bytes(uint32_t bytes) {
  const uint32_t unit = bytes <= 1024 ? 64 : 4096;
  return (bytes + unit - 1) / unit * unit;
}
/// The number of messages of one call that always have space on a connection, wherever its earlier messages are.
inline constexpr uint32_t kRingMessages = 8;
/// On one host, a lap is at most this long: 32 messages of 16 KiB, 8 of 64 KiB.
inline constexpr uint32_t kLapBytes = 512 * 1024;

/// Before a message of at least this size, the writer checks whether its ring is empty. If it is, the message starts at
/// the beginning, unless the lap is the whole ring.
inline constexpr uint32_t kRestartBytes = 256 * 1024;

/// These compute the fingerprint of the messages of call number `sequence`. `shape` is the fingerprint of its shape.
/// Equal calls have different fingerprints unless their numbers differ by a multiple of kFingerprints.
constexpr uint32_t call_index(uint64_t sequence) { return static_cast<uint32_t>(sequence % kFingerprints); }
constexpr uint32_t fingerprint_at(uint32_t shape, uint32_t call_index) {
  const uint32_t sum = shape + call_index;
  return sum > kFingerprints ? sum - kFingerprints : sum;
}
/// all_to_all_v: a rank has only the counts of its own parts, so a message's fingerprint contains the pair's count.
constexpr uint32_t pair_fingerprint(uint32_t shape, uint64_t num_elems) {
  uint64_t h = ((num_elems + 1) * 0x94D049BB133111EBu ^ shape) * 0x9E3779B97F4A7C15u;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  return 1 + static_cast<uint32_t>(h >> 32) % kFingerprints;
}
constexpr uint64_t make_flag(uint32_t fingerprint, uint64_t step) {
  return (static_cast<uint64_t>(fingerprint) << 40) | ((step + 1) & kStepMask);
}
constexpr bool same_step(uint64_t flag, uint64_t step) { return (flag & kStepMask) == ((step + 1) & kStepMask); }

/// The store that makes a message visible, or returns steps to the writer.
struct FifoPost {
  uint64_t* word;
  uint64_t value;
};

template <class Mem>
class FifoWriter {
 public:
  FifoWriter() = default;
  /// `readers`: indices of the num_readers counters that limit the writer. They must outlive it.
  RONDO_HOST_DEVICE FifoWriter(const FifoView& view, const uint32_t* readers, uint32_t num_readers,
                               uint64_t first_step = 0)
      : view_(view),
        readers_(readers),
        num_readers_(num_readers),
        step_(first_step),
        limit_(first_step + view.num_lines) {}

  /// Returns true if there is a free line for each of the next n steps. n <= num_lines.
  RONDO_HOST_DEVICE bool room(uint32_t n) { return step_ + n <= limit_ || (look(), step_ + n <= limit_); }
  /// Returns true if there is a free line for one step, and space for `bytes` > 0 of data in the ring. data() is this
  /// space until post_data. `lap`: the number of bytes of the ring that the writer uses if possible. It must be enough
  /// for kRingMessages of the call's longest messages. With a lap as long as the ring it uses the whole ring in turn.
  RONDO_HOST_DEVICE bool room_for(uint32_t bytes, uint32_t lap) {
    return (bytes < kRestartBytes && step_ < limit_ && offset_ + bytes <= free_end_) || find_place(bytes, lap);
  }
  RONDO_HOST_DEVICE std::byte* data() const { return view_.data + offset_; }
  RONDO_HOST_DEVICE std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Makes n steps visible to the readers.
  RONDO_HOST_DEVICE void post(uint32_t n, uint32_t fingerprint) {
    for (uint32_t i = 0; i < n; ++i) Mem::store_release(&at(i).flag, make_flag(fingerprint, step_ + i));
    step_ += n;
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_write(&at(kMessagesAhead * n + i));
  }
  /// Makes the message at data() visible to the readers. If `zero_copy_at` is not 0, the data is there, and not at
  /// data().
  RONDO_HOST_DEVICE void post_data(uint32_t bytes, uint32_t fingerprint, uint64_t zero_copy_at = 0) {
    put_place(bytes, zero_copy_at);
    post(1, fingerprint);
  }
  /// take() is post(1), and take_data() is post_data(), without the store. The caller stores the value after it has
  /// written the message. Call data() and line() before, because the end advances to its next step.
  RONDO_HOST_DEVICE FifoPost take(uint32_t fingerprint) {
    const FifoPost p{&at(0).flag, make_flag(fingerprint, step_)};
    ++step_;
    return p;
  }
  RONDO_HOST_DEVICE FifoPost take_data(uint32_t bytes, uint32_t fingerprint) {
    put_place(bytes, 0);
    return take(fingerprint);
  }
  /// Skips n steps whose flags were written with the data (ll.h, ll128.h).
  RONDO_HOST_DEVICE void advance(uint32_t n) { step_ += n; }
  /// Returns true if all readers have finished a posted message.
  RONDO_HOST_DEVICE bool is_read(uint64_t step) const {
    for (uint32_t i = 0; i < num_readers_; ++i)
      if (step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps) >= step_ - step) return false;
    return true;
  }
  /// Returns true if a reader refused a zero-copy send. If the line was reused, this is a later message's state.
  bool is_refused(uint64_t step) const { return (Mem::load_acquire(&place_of(step)->zero_copy_at) & kRefused) != 0; }
  /// Copies an unread zero-copy send from `data` into the ring. Readers then use the copy, and `data` may be
  /// overwritten. Returns false if the send was refused.
  bool reclaim(uint64_t step, const std::byte* data) {
    DataPlace* place = place_of(step);
    std::memcpy(view_.data + starts_[step % kMaxDataLines], data, place->bytes);
    return (Mem::fetch_add(&place->zero_copy_at, uint64_t{0} - reinterpret_cast<uint64_t>(data)) & kRefused) == 0;
  }
  RONDO_HOST_DEVICE uint64_t step() const { return step_; }
  RONDO_HOST_DEVICE uint32_t num_lines() const { return view_.num_lines; }
  RONDO_HOST_DEVICE const FifoView& view() const { return view_; }

  /// Stores the writer's state in `end` between two launches of a kernel: step, offset, free_end, starts.
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
  RONDO_HOST_DEVICE void put_place(uint32_t bytes, uint64_t zero_copy_at) {
    *reinterpret_cast<DataPlace*>(at(0).payload) = {offset_, bytes, zero_copy_at};
    starts_[step_ % kMaxDataLines] = offset_;
    const uint32_t next = offset_ + place_bytes(bytes);
    offset_ = next < free_end_ ? next : free_end_;
  }
  DataPlace* place_of(uint64_t step) const {
    return reinterpret_cast<DataPlace*>(view_.lines[step & (view_.num_lines - 1)].payload);
  }
  /// Reads the counters. Returns the number of steps that the slowest reader has not finished. Valid also after a
  /// wrap, because no counter is ahead of the writer.
  RONDO_HOST_DEVICE uint64_t look() {
    uint64_t behind = 0;
    for (uint32_t i = 0; i < num_readers_; ++i) {
      const uint64_t lag = step_ - Mem::load_acquire(&view_.counters[readers_[i]].steps);
      behind = lag > behind ? lag : behind;
    }
    limit_ = step_ - behind + view_.num_lines;
    return behind;
  }
  // Finds space in the ring. The unread data is between `first` and offset_, and may continue at the ring's beginning.
  // offset_ may advance up to free_end_ before the counters are read again.
  RONDO_HOST_DEVICE bool find_place(uint32_t bytes, uint32_t lap) {
    const uint64_t behind = look();
    if (behind == 0) {
      if (lap < view_.data_bytes || offset_ + bytes > view_.data_bytes) offset_ = 0;
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

template <class Mem>
class FifoReader {
 public:
  FifoReader() = default;
  RONDO_HOST_DEVICE FifoReader(const FifoView& view, uint32_t counter, uint64_t first_step = 0)
      : view_(view), counter_(counter), step_(first_step) {}

  /// Checks whether the next n steps have arrived, and whether they are from the same operation.
  RONDO_HOST_DEVICE Arrival arrived(uint32_t n, uint32_t fingerprint) const {
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t flag = Mem::load_acquire(&at(i).flag);
      if (flag != make_flag(fingerprint, step_ + i)) [[unlikely]]
        return same_step(flag, step_ + i) ? Arrival::kMismatch : Arrival::kNotYet;
    }
    return Arrival::kReady;
  }
  /// Returns the fingerprint of the arrived message, after kMismatch.
  uint32_t found_fingerprint() const {
    return static_cast<uint32_t>(Mem::load_acquire(&at(0).flag) >> (64 - kFingerprintBits));
  }
  /// Returns the arrived message's data in the ring.
  RONDO_HOST_DEVICE const std::byte* data() const {
    return view_.data + reinterpret_cast<const DataPlace*>(at(0).payload)->offset;
  }
  /// Returns the arrived message's address in the writer's process (zero-copy send); 0 if it is in the ring.
  uint64_t zero_copy_at() const { return Mem::load_acquire(zero_copy_word()) & ~kRefused; }
  /// Call it after reading at zero_copy_at(). Returns true if the data read is the message. Returns false if the writer
  /// has moved the message into the ring meanwhile.
  bool was_zero_copy() const { return (Mem::fetch_add(zero_copy_word(), 0) & ~kRefused) != 0; }
  /// Asks the writer to copy the message into the ring, because this reader cannot read it at its address.
  void refuse() const { Mem::fetch_or(zero_copy_word(), kRefused); }
  bool is_refused() const { return (Mem::load_acquire(zero_copy_word()) & kRefused) != 0; }
  RONDO_HOST_DEVICE const std::byte* line(uint32_t ahead) const { return at(ahead).payload; }
  /// Prefetches n lines of steps that may have arrived.
  RONDO_HOST_DEVICE void prefetch(uint32_t n) const {
    for (uint32_t i = 0; i < n; ++i) Mem::prefetch_for_read(&at(i));
  }
  /// Returns n steps to the writer.
  RONDO_HOST_DEVICE void release(uint32_t n) {
    const FifoPost p = take(n);
    Mem::store_release(p.word, p.value);
  }
  /// As release, but the caller does the store, after it has read the messages. Advances, so call data() and line()
  /// before.
  RONDO_HOST_DEVICE FifoPost take(uint32_t n) {
    step_ += n;
    return {&view_.counters[counter_].steps, step_};
  }
  RONDO_HOST_DEVICE uint64_t step() const { return step_; }
  RONDO_HOST_DEVICE const FifoView& view() const { return view_; }

 private:
  RONDO_HOST_DEVICE HeaderLine& at(uint32_t ahead) const {
    return view_.lines[(step_ + ahead) & (view_.num_lines - 1)];
  }
  uint64_t* zero_copy_word() const { return &reinterpret_cast<DataPlace*>(at(0).payload)->zero_copy_at; }
  FifoView view_;
  uint32_t counter_ = 0;
  uint64_t step_ = 0;
};

}  // namespace rondo
