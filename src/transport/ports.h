// Ports: this rank's ends of the communicator's connections. They are made at first use and kept.
//
// All programs that use a connection share its port, which has the connection's step counter. Operations use an end one
// after the other. An operation reserves its steps when it starts (`reserved`). It may use the end when `step` has
// reached its first reserved step.
//
// Thread safety: everything belongs to the communicator's driver.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/memory.h"
#include "rondo/schedule.h"
#include "transport/transport.h"

namespace rondo {

struct WritePort {
  ConnectionKey key;
  FifoWriter<HostMem> fifo;
  std::vector<uint32_t> counters;       // the readers' counter indices
  std::vector<Doorbell*> reader_bells;  // of readers that may sleep until this rank posts
  uint64_t reserved = 0;                // the step after those of all started operations
  // A message may stay in its buffer in one of two ways: the transport sends it from there, or its readers pull it.
  static constexpr uint32_t kLeastZeroCopyBytes = 4096;  // copying shorter ones is faster
  ZeroCopySend* zero_copy_sends = nullptr;  // by line; nullptr: the transport cannot
  bool sends_by_address = false;            // readers can pull, and none has refused so far
  const std::byte* source = nullptr;        // data of the message that is posted next; nullptr: in the ring

  /// Returns the transport's zero-copy send of a step's line.
  ZeroCopySend& zero_copy_send(uint64_t step) const { return zero_copy_sends[step & (fifo.num_lines() - 1)]; }
  /// Returns true if there is space for a message of so many lines, or of so many bytes in the ring.
  bool room_for(uint32_t steps, uint32_t ring_bytes, uint32_t lap_bytes) {
    return ring_bytes == 0 ? fifo.room(steps) : fifo.room_for(ring_bytes, lap_bytes);
  }
  /// Chooses where the next message is. Returns its place in the ring; nullptr if it stays at `data`, which must then
  /// be complete before PortTable::post_data. `data` is nullptr if it cannot stay. `adds`: the readers add the message.
  std::byte* place(const std::byte* data, uint32_t bytes, bool adds) {
    constexpr uint32_t kLeastPulledBytes = 32 * 1024;  // copying shorter ones is faster
    // A pull is faster only for sums. Readers of a gather copy the data anyway, and write it far from their caches.
    const bool stays = data != nullptr && bytes >= kLeastZeroCopyBytes &&
                       (zero_copy_sends != nullptr ? !zero_copy_send(fifo.step()).is_out()  // out: use the ring
                                                   : sends_by_address && adds && bytes >= kLeastPulledBytes);
    source = stays ? data : nullptr;
    return stays ? nullptr : fifo.data();
  }
  /// Makes n steps visible to the readers, and wakes them.
  void post(uint32_t n, uint32_t fingerprint) {
    fifo.post(n, fingerprint);
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
  /// As post, for a message in the ring, at fifo.data().
  void post_data(uint32_t bytes, uint32_t fingerprint) {
    fifo.post_data(bytes, fingerprint);
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
};

/// The zero-copy messages of this rank that may still be read in their buffers. Until then nothing may overwrite the
/// data, and the call that sent it is not complete.
class OpenSends {
 public:
  struct Send {
    WritePort* port;
    uint64_t step;
    const std::byte* data;
    uint64_t bytes;
    const void* call;
    bool by_address() const { return port->zero_copy_sends == nullptr; }
    bool is_open() const { return by_address() ? !port->fifo.is_read(step) : port->zero_copy_send(step).is_out(step); }
  };
  /// Returns a predicate for find(), any() and reclaim(): true for the sends of a call.
  static auto of(const void* call) {
    return [=](const Send& s) { return s.call == call; };
  }
  /// As of(): true for the sends whose data overlap these bytes.
  static auto in(const std::byte* at, uint64_t bytes) {
    return [=](const Send& s) { return at < s.data + s.bytes && s.data < at + bytes; };
  }

  void add(const Send& s);
  bool empty() const { return sends_.empty(); }
  /// Returns the first send that `which` selects; nullptr if there is none. The send may be complete.
  template <class Which>
  const Send* find(Which which) const {
    const auto found = std::find_if(sends_.begin(), sends_.end(), which);
    return found != sends_.end() ? &*found : nullptr;
  }
  /// Returns true if such a send is not complete.
  template <class Which>
  bool any(Which which) {
    forget_complete();
    return find(which) != nullptr;
  }
  /// Copies such messages into their rings if their readers pull them. Does not wait for a reader.
  template <class Which>
  void reclaim(Which which) {
    std::erase_if(sends_, [&](const Send& s) {
      if (!s.by_address() || !which(s)) return false;
      if (s.is_open() && !s.port->fifo.reclaim(s.step, s.data)) s.port->sends_by_address = false;
      return true;
    });
  }
  /// Copies the messages that readers have refused. After one refusal a port no longer sends by address.
  void reclaim_refused();
  /// Ends all sends: reclaims them, or makes the transport cancel them.
  void cancel(Transport& transport);

 private:
  void forget_complete() {
    std::erase_if(sends_, [](const Send& s) { return !s.is_open(); });
  }
  std::vector<Send> sends_;
};

struct ReadPort {
  ConnectionKey key;
  FifoReader<HostMem> fifo;
  Doorbell* writer_bell = nullptr;  // nullptr: cannot be woken from here
  uint64_t reserved = 0;
  bool connected = false;                   // before that, `fifo` reads a line that never arrives
  PostedReceive* posted_receive = nullptr;  // nullptr: the transport has none
  bool pulls = false;                       // some messages are in their writer's buffers

  /// Returns the destination of the arrived message if it was stored there; nullptr if it is in the ring.
  const std::byte* posted_data(uint32_t fingerprint) const {
    return posted_receive != nullptr ? posted_receive->find(make_flag(fingerprint, fifo.step())) : nullptr;
  }
  /// Returns true if the arrived message cannot be pulled and its writer has not copied it into the ring yet.
  bool waits_for_ring() const { return pulls && fifo.is_refused() && fifo.zero_copy_at() != 0; }
  /// Asks the writer to copy the message into the ring, because this rank cannot pull it. Wakes the writer.
  void refuse() const {
    fifo.refuse();
    if (writer_bell != nullptr) ring(*writer_bell);
  }
  void release(uint32_t n) {
    fifo.release(n);
    if (writer_bell != nullptr) [[likely]]
      ring(*writer_bell);
  }
  /// Releases a message of the ring, which may have had a posted receive.
  void release_data() {
    if (posted_receive != nullptr) posted_receive->take_back();
    release(1);
  }
};

class PortTable {
 public:
  PortTable(Rank rank, Transport& transport) : rank_(rank), transport_(transport) {}
  /// Returns the writing end of the connection to `readers`, which has one entry for each reader. If their group is not
  /// kUnicast, the connection is a multicast.
  Expected<WritePort*> writer(const std::vector<Port>& readers, bool inline_only);
  /// Returns the reading end of the connection from `from`. Its writer may not have made it yet.
  ReadPort* reader(const Port& from, bool inline_only);
  /// Connects the port if the writer has made the connection. Returns true if so.
  bool try_connect(ReadPort& port);
  /// Makes the message of place() visible to the readers, and wakes them. If it is zero-copy, it is an open send of
  /// `call`.
  void post_data(WritePort& to, uint32_t bytes, uint32_t fingerprint, const void* call) {
    if (to.source != nullptr) open_sends_.add({&to, to.fifo.step(), to.source, bytes, call});
    to.fifo.post_data(bytes, fingerprint, to.zero_copy_sends == nullptr ? reinterpret_cast<uint64_t>(to.source) : 0);
    for (Doorbell* bell : to.reader_bells) ring(*bell);
  }
  OpenSends& open_sends() { return open_sends_; }
  const OpenSends& open_sends() const { return open_sends_; }
  Transport& transport() { return transport_; }

 private:
  struct KeyHash {
    size_t operator()(const ConnectionKey& k) const {
      uint64_t h = static_cast<uint64_t>(k.writer) << 40 ^ static_cast<uint64_t>(k.reader + 1) << 20 ^
                   static_cast<uint64_t>(k.tag) << 4 ^ static_cast<uint64_t>(k.group) << 1 ^ k.inline_only;
      return static_cast<size_t>(h * 0x9E3779B97F4A7C15u);
    }
  };
  Rank rank_;
  Transport& transport_;
  std::unordered_map<ConnectionKey, std::unique_ptr<WritePort>, KeyHash> writers_;
  std::unordered_map<ConnectionKey, std::unique_ptr<ReadPort>, KeyHash> readers_;
  OpenSends open_sends_;
};

}  // namespace rondo
