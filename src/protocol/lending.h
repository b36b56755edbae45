// Messages that go round the ring of a FIFO. Where writer and reader share no ring, it only hands a message to the
// transport, in the same process, so it may be left out on either side:
//
//   Loan     the writer leaves the data where its caller has them; the transport sends from there, and gives them back
//   Landing  the reader says what is to become of the message that it waits for; the transport does it when it comes
//
// Where they share a ring, and the kernel lets the reader read the writer's memory too, a message may be lent by its
// address, which its line then holds (DataPlace in fifo.h):
//
//   writer   posts the line with the address; brings the data into the ring when it needs their place for something
//            else, when its call fails, or when its call is over and a reader is late
//   reader   reads there, and then looks whether the line still says so: otherwise the message is in the ring. What the
//            kernel does not let it read (a device's mapping, a process that has closed itself since) it refuses: the
//            writer, when it waits or ends, puts that into the ring, and lends no more on this connection. A reader
//            that adds block by block looks so behind each block; what it cannot read in the middle, though it could
//            the message's two ends, ends its call
//
// So nobody waits for a reader, and what a reader has read from memory that is no longer the message's is never used.
//
// The message has its line, its place in the ring and its credit as always: whether it was lent or has landed is nobody
// else's business, and may differ from one message to the next.
//
// Thread safety: one thread at a time on the engine's side of each, one on the transport's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

namespace rondo {

/// Of one line of a FifoWriter. The engine fills it before it posts the line; the transport gives it back once for
/// each reader, when it reads the data no more.
class Loan {
 public:
  // The engine's side.
  void lend(const std::byte* data, uint64_t step) {
    data_ = data;
    step_ = step;
    out_.store(readers_, std::memory_order_relaxed);  // the line's flag publishes it
  }
  bool is_out() const { return out_.load(std::memory_order_acquire) != 0; }
  /// What was lent for that step, that is.
  bool is_out(uint64_t step) const { return step_ == step && is_out(); }

  // The transport's side.
  void set_readers(uint32_t readers) { readers_ = readers; }
  /// Of a step that was posted and not yet given back for this reader; nullptr: its message lies in the ring. (What the
  /// line carried a lap before may still be out.)
  const std::byte* data(uint64_t step) const {
    return step_ == step && out_.load(std::memory_order_relaxed) != 0 ? data_ : nullptr;
  }
  void give_back() { out_.fetch_sub(1, std::memory_order_release); }
  /// For all readers: nobody will read it, and nobody gives it back after that. True when it was out.
  bool let_go() { return out_.exchange(0, std::memory_order_release) != 0; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t step_ = 0;
  uint32_t readers_ = 1;
  std::atomic<uint32_t> out_ = 0;
};

/// Of one FifoReader: the message that its owner waits for.
class Landing {
 public:
  /// Adds a piece of a message to what is there: `bytes` of it from `offset` on. It may lie at any address.
  using Add = std::function<void(const std::byte* data, uint32_t offset, uint32_t bytes)>;

  // The engine's side.
  /// To be asked for once: the transport may be at it.
  bool has_asked(uint64_t flag) const { return asked_ == flag; }
  /// The message with this flag, if it has so many bytes, belongs at `at`: as it is, or as `add` leaves it there. Until
  /// it is taken back, or has landed, what lies there, and what `add` reads, is the transport's.
  void ask(uint64_t flag, uint32_t bytes, std::byte* at, Add add = nullptr) {
    asked_ = flag;
    at_ = at;
    bytes_ = bytes;
    add_ = std::move(add);
    wanted_.store(flag, std::memory_order_release);
  }
  /// True while the message with this flag may still land.
  bool waits_for(uint64_t flag) const {
    const uint64_t wanted = wanted_.load(std::memory_order_relaxed);
    return wanted == flag || (wanted == kLanding && asked_ == flag);
  }
  /// Of a message that has arrived: where it has landed; nullptr: it lies in the ring.
  const std::byte* find(uint64_t flag) const { return landed_ == flag ? at_ : nullptr; }
  /// Of a message that has arrived: nothing lands there any more.
  void take_back() { wanted_.store(kNone, std::memory_order_relaxed); }

  // The transport's side. A message's line is to be stored after it has landed.
  /// A message that is here. True: it has landed; false: it belongs into the ring.
  bool put(const std::byte* data, uint64_t bytes, uint64_t flag) {
    if (!begin(bytes, flag)) return false;
    if (add_ != nullptr) add_(data, 0, bytes_);
    else std::memcpy(at_, data, bytes);
    finish();
    return true;
  }
  static constexpr size_t kPieceBytes = 64;  // whole elements of any type, and whole cache lines
  /// True: a message that is still to be received is taken here as it comes, followed by finish() or drop(). False: it
  /// belongs into the ring.
  bool claim(uint64_t bytes, uint64_t flag) { return begin(bytes, flag); }
  /// Of a claimed message: where it is received as it is; nullptr: it is taken by add().
  std::byte* place() const { return add_ == nullptr ? at_ : nullptr; }
  /// The claimed message's bytes from `offset` on, each once: a multiple of kPieceBytes, but for its last ones.
  void add(const std::byte* data, uint64_t offset, uint64_t bytes) {
    add_(data, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes));
  }
  /// It is all there.
  void finish() {
    landed_ = asked_;
    wanted_.store(kNone, std::memory_order_release);
  }
  /// It will not come.
  void drop() { wanted_.store(kNone, std::memory_order_release); }

 private:
  bool begin(uint64_t bytes, uint64_t flag) {
    uint64_t expected = flag;  // a peer may send any
    return flag > kLanding && wanted_.load(std::memory_order_acquire) == flag && bytes_ == bytes &&
           wanted_.compare_exchange_strong(expected, kLanding, std::memory_order_acquire);
  }

  // No message's flags: a fingerprint is never 0.
  static constexpr uint64_t kNone = 0, kLanding = 1;
  uint64_t asked_ = kNone;  // the last one
  std::byte* at_ = nullptr;
  uint32_t bytes_ = 0;
  Add add_;  // empty: as it is
  std::atomic<uint64_t> wanted_ = kNone;
  uint64_t landed_ = kNone;  // the last one
};

}  // namespace rondo
