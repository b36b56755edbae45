// Messages that bypass the ring of a FIFO. Either side may do this:
//
//   Zero-copy send   the writer leaves the data in the caller's buffer
//   Posted receive   the reader posts the destination of its next message. The transport stores the data there
//
// If writer and reader share no memory, the transport sends the data from the buffer (ZeroCopySend). If they share a
// ring in a communicator of several hosts, and the kernel lets the reader read the writer's memory, the line may
// contain the address (DataPlace in fifo.h), and the reader copies the data from there:
//
//   writer   posts the line with the address. It copies the data into the ring when it needs its buffer, when its call
//            fails, or when its call is over and a reader is late
//   reader   reads at the address. Then it checks that the line still has the address. Otherwise the message is in the
//            ring. It refuses memory that the kernel does not let it read (a device's mapping, a process that forbids
//            it). The writer copies a refused message into the ring when it waits or when its call ends. It makes no
//            more zero-copy sends on this connection. A reader that adds block by block checks after each block. If
//            both ends of a message were readable but a block between them is not, the reader's call fails
//
// Therefore a send by address never makes the writer wait for a reader, and data from reused memory is never used.
//
// A message that bypasses the ring still has its line, its space in the ring and its credit. Other code does not notice
// the difference.
//
// Thread safety: of each object, one thread at a time may use the engine's side, and one the transport's side.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

namespace rondo {

/// The zero-copy send of one line of a FifoWriter. The engine fills it before it posts the line. The transport returns
/// it once for each reader, when it no longer reads the data.
class ZeroCopySend {
 public:
  // The engine's side.
  void send_zero_copy(const std::byte* data, uint64_t step) {
    data_ = data;
    step_ = step;
    out_.store(readers_, std::memory_order_relaxed);  // the line's flag publishes it
  }
  bool is_out() const { return out_.load(std::memory_order_acquire) != 0; }
  /// Returns true if the transport has not returned the zero-copy send of this step yet.
  bool is_out(uint64_t step) const { return step_ == step && is_out(); }

  // The transport's side.
  void set_readers(uint32_t readers) { readers_ = readers; }
  /// Returns the data of this step's message if it is a zero-copy send that is still out; nullptr if the message is in
  /// the ring. (The send of the line's previous message may still be out.)
  const std::byte* data(uint64_t step) const {
    return step_ == step && out_.load(std::memory_order_relaxed) != 0 ? data_ : nullptr;
  }
  void give_back() { out_.fetch_sub(1, std::memory_order_release); }
  /// Returns the send for all readers at once: the transport no longer reads the data, and must not call give_back().
  /// Returns true if it was not returned before.
  bool let_go() { return out_.exchange(0, std::memory_order_release) != 0; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t step_ = 0;
  uint32_t readers_ = 1;
  std::atomic<uint32_t> out_ = 0;
};

/// The posted receive of one FifoReader: the destination of the message that its owner waits for.
class PostedReceive {
 public:
  /// Adds `bytes` of a message, which begin at `offset` in the message, to the destination. `data` may have any
  /// alignment.
  using Add = std::function<void(const std::byte* data, uint32_t offset, uint32_t bytes)>;

  // The engine's side.
  /// Returns true if a receive was posted for this flag. Post it only once, because the transport may already use it.
  bool has_asked(uint64_t flag) const { return asked_ == flag; }
  /// Posts a receive. If the message with this flag has `bytes` bytes, the transport stores it at `at`, or passes it to
  /// `add`. Until the message arrives or take_back() is called, the transport owns the memory at `at` and the memory
  /// that `add` reads.
  void ask(uint64_t flag, uint32_t bytes, std::byte* at, Add add = nullptr) {
    asked_ = flag;
    at_ = at;
    bytes_ = bytes;
    add_ = std::move(add);
    wanted_.store(flag, std::memory_order_release);
  }
  /// Returns true if a message may still be stored in some of these bytes.
  bool may_write(const std::byte* at, uint64_t bytes) const {
    return wanted_.load(std::memory_order_relaxed) != kNone && at < at_ + bytes_ && at_ < at + bytes;
  }
  /// Returns the destination of an arrived message; nullptr if the message is in the ring.
  const std::byte* find(uint64_t flag) const { return filled_ == flag ? at_ : nullptr; }
  /// Cancels the posted receive. Call it after a message has arrived.
  void take_back() { wanted_.store(kNone, std::memory_order_relaxed); }

  // The transport's side. It must store a message's line after its data.
  /// Delivers a complete message to its destination. Returns false if it must go into the ring instead.
  bool put(const std::byte* data, uint64_t bytes, uint64_t flag) {
    if (!claim(bytes, flag)) return false;
    if (add_ != nullptr) add_(data, 0, bytes_);
    else std::memcpy(at_, data, bytes);
    finish();
    return true;
  }
  static constexpr size_t kPieceBytes = 64;  // whole elements of any type, and whole cache lines
  /// Claims the posted receive for a message that is still being received. Call finish() or drop() afterwards. Returns
  /// false if the message must go into the ring instead.
  bool claim(uint64_t bytes, uint64_t flag) {
    uint64_t expected = flag;  // the flag comes from a peer and may have any value
    return flag > kClaimed && wanted_.load(std::memory_order_acquire) == flag && bytes_ == bytes &&
           wanted_.compare_exchange_strong(expected, kClaimed, std::memory_order_acquire);
  }
  /// Returns the destination of a claimed message that is copied; nullptr if it is added: then use add().
  std::byte* place() const { return add_ == nullptr ? at_ : nullptr; }
  /// Adds bytes of the claimed message, which begin at `offset`. Add each byte once. `bytes` must be a multiple of
  /// kPieceBytes, except at the end of the message.
  void add(const std::byte* data, uint64_t offset, uint64_t bytes) {
    add_(data, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes));
  }
  /// Ends a claim: all bytes have arrived.
  void finish() {
    filled_ = asked_;
    wanted_.store(kNone, std::memory_order_release);
  }
  /// Ends a claim: the message will not arrive.
  void drop() { wanted_.store(kNone, std::memory_order_release); }

 private:
  // Not valid flags: a fingerprint is never 0.
  static constexpr uint64_t kNone = 0, kClaimed = 1;
  uint64_t asked_ = kNone;  // the last one
  std::byte* at_ = nullptr;
  uint32_t bytes_ = 0;
  Add add_;  // empty: the message is copied
  std::atomic<uint64_t> wanted_ = kNone;
  uint64_t filled_ = kNone;  // the last one
};

}  // namespace rondo
