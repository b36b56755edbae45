// Messages that bypass the ring of a FIFO. If writer and reader share no ring, it only hands a message to the transport
// in the same process, and either side may skip it:
//
//   Loan     zero-copy send: the data stays in the caller's buffer; the transport sends from there and returns it
//   Landing  posted receive: the reader registers the destination of its next message; the transport stores it there
//
// If they share a ring, and the kernel lets the reader read the writer's memory, the line may hold the message's
// address (DataPlace in fifo.h):
//
//   writer   posts the line with the address. It copies the data into the ring when it needs their place, when its
//            call fails, or when its call is over and a reader is late
//   reader   reads there, and then checks that the line still has the address; otherwise the message is in the ring.
//            It refuses memory that the kernel does not let it read (a device's mapping, a process that forbids it).
//            The writer puts a refused message into the ring when it waits or ends, and makes no more zero-copy sends
//            on this connection. A reader that adds block by block checks after each block. If the middle is unreadable
//            although both ends were readable, its call fails
//
// Therefore the writer never waits for a reader, and data read from reused memory is never used.
//
// The message keeps its line, its place in the ring and its credit. Each message may or may not bypass the ring; other
// code does not notice.
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

/// The zero-copy send of one line of a FifoWriter. The engine fills it before it posts the line. The transport returns
/// it once for each reader, after its last read of the data.
class Loan {
 public:
  // The engine's side.
  void lend(const std::byte* data, uint64_t step) {
    data_ = data;
    step_ = step;
    out_.store(readers_, std::memory_order_relaxed);  // the line's flag publishes it
  }
  bool is_out() const { return out_.load(std::memory_order_acquire) != 0; }
  /// True if that step's zero-copy send is still out.
  bool is_out(uint64_t step) const { return step_ == step && is_out(); }

  // The transport's side.
  void set_readers(uint32_t readers) { readers_ = readers; }
  /// The data of a posted step that was not yet returned for this reader; nullptr: its message is in the ring. (The
  /// line's previous message may still be out.)
  const std::byte* data(uint64_t step) const {
    return step_ == step && out_.load(std::memory_order_relaxed) != 0 ? data_ : nullptr;
  }
  void give_back() { out_.fetch_sub(1, std::memory_order_release); }
  /// Ends it for all readers: none will read it, and none may return it afterwards. True if it was out.
  bool let_go() { return out_.exchange(0, std::memory_order_release) != 0; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t step_ = 0;
  uint32_t readers_ = 1;
  std::atomic<uint32_t> out_ = 0;
};

/// The posted receive of one FifoReader: the message that its owner waits for.
class Landing {
 public:
  /// Adds `bytes` of a message from `offset` on to the destination. `data` may have any alignment.
  using Add = std::function<void(const std::byte* data, uint32_t offset, uint32_t bytes)>;

  // The engine's side.
  /// Post a receive only once: the transport may already be using it.
  bool has_asked(uint64_t flag) const { return asked_ == flag; }
  /// Posts a receive: the message with this flag, if it has this many bytes, goes to `at`, as it is or through `add`.
  /// Until take_back() or its arrival the transport owns the memory at `at` and the memory that `add` reads.
  void ask(uint64_t flag, uint32_t bytes, std::byte* at, Add add = nullptr) {
    asked_ = flag;
    at_ = at;
    bytes_ = bytes;
    add_ = std::move(add);
    wanted_.store(flag, std::memory_order_release);
  }
  /// True while the message with this flag may still use the posted receive.
  bool waits_for(uint64_t flag) const {
    const uint64_t wanted = wanted_.load(std::memory_order_relaxed);
    return wanted == flag || (wanted == kLanding && asked_ == flag);
  }
  /// The destination of an arrived message; nullptr: it is in the ring.
  const std::byte* find(uint64_t flag) const { return landed_ == flag ? at_ : nullptr; }
  /// After a message has arrived: cancels the posted receive.
  void take_back() { wanted_.store(kNone, std::memory_order_relaxed); }

  // The transport's side. Store a message's line after its data.
  /// Delivers a complete message. True: to its destination; false: it belongs into the ring.
  bool put(const std::byte* data, uint64_t bytes, uint64_t flag) {
    if (!begin(bytes, flag)) return false;
    if (add_ != nullptr) add_(data, 0, bytes_);
    else std::memcpy(at_, data, bytes);
    finish();
    return true;
  }
  static constexpr size_t kPieceBytes = 64;  // whole elements of any type, and whole cache lines
  /// Claims the posted receive for a message that is still being received; finish() or drop() must follow. False: the
  /// message belongs into the ring.
  bool claim(uint64_t bytes, uint64_t flag) { return begin(bytes, flag); }
  /// Destination of a claimed message that is received as it is; nullptr: use add().
  std::byte* place() const { return add_ == nullptr ? at_ : nullptr; }
  /// The claimed message's bytes from `offset` on, each once: a multiple of kPieceBytes, except the last ones.
  void add(const std::byte* data, uint64_t offset, uint64_t bytes) {
    add_(data, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes));
  }
  /// All bytes are there.
  void finish() {
    landed_ = asked_;
    wanted_.store(kNone, std::memory_order_release);
  }
  /// The message will not arrive.
  void drop() { wanted_.store(kNone, std::memory_order_release); }

 private:
  bool begin(uint64_t bytes, uint64_t flag) {
    uint64_t expected = flag;  // the flag comes from a peer and may have any value
    return flag > kLanding && wanted_.load(std::memory_order_acquire) == flag && bytes_ == bytes &&
           wanted_.compare_exchange_strong(expected, kLanding, std::memory_order_acquire);
  }

  // Not valid flags: a fingerprint is never 0.
  static constexpr uint64_t kNone = 0, kLanding = 1;
  uint64_t asked_ = kNone;  // the last one
  std::byte* at_ = nullptr;
  uint32_t bytes_ = 0;
  Add add_;  // empty: as it is
  std::atomic<uint64_t> wanted_ = kNone;
  uint64_t landed_ = kNone;  // the last one
};

}  // namespace rondo
