// Ports: this rank's ends of the communicator's connections. They are made at first use and kept.
//
// All programs with the same connection share its port. Therefore its step counter is here. Operations use an end one
// after the other. An operation reserves its steps when it starts (`reserved`). It may use the end when `step` has
// reached the first of them.
//
// Thread safety: everything belongs to the communicator's driver.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/memory.h"
#include "rondo/schedule.h"
#include "transport/transport.h"

namespace rondo {

struct WritePort {
  ConnectionKey key;
  FifoWriter<HostMem, HostGroup> fifo;
  std::vector<uint32_t> counters;       // the readers' counter indices
  std::vector<Doorbell*> reader_bells;  // of readers that may sleep until this rank posts
  uint64_t reserved = 0;                // the step after those of all started operations
  ZeroCopySend* zero_copy_sends = nullptr;   // by line; nullptr: all messages go through the ring
  bool sends_by_address = false;             // zero-copy sends by address, to readers that pull
  const std::byte* zero_copy_now = nullptr;  // data of the message that is posted next, if readers are to pull it

  /// Returns the zero-copy send of the next line; nullptr if unavailable.
  ZeroCopySend* zero_copy_send() const {
    if (zero_copy_sends == nullptr) [[likely]]
      return nullptr;
    ZeroCopySend& l = zero_copy_sends[fifo.step() & (fifo.num_lines() - 1)];
    return l.is_out() ? nullptr : &l;  // its line was reused before the data were returned
  }
  /// Makes n steps, or one message of the ring, visible to the readers, and wakes them.
  void post(uint32_t n, uint32_t fingerprint) {
    fifo.post(n, fingerprint);
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
  void post_data(uint32_t bytes, uint32_t fingerprint) {
    fifo.post_data(bytes, fingerprint, reinterpret_cast<uint64_t>(std::exchange(zero_copy_now, nullptr)));
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
};

struct ReadPort {
  ConnectionKey key;
  FifoReader<HostMem, HostGroup> fifo;
  Doorbell* writer_bell = nullptr;  // nullptr: cannot be woken from here
  uint64_t reserved = 0;
  bool connected = false;      // before that, `fifo` reads a line that never arrives
  PostedReceive* posted_receive = nullptr;  // nullptr: all messages come through the ring
  bool pulls = false;          // some messages come by address

  /// Returns the arrived message's data in its posted receive; nullptr if it is in the ring.
  const std::byte* landed(uint32_t fingerprint) const {
    return posted_receive != nullptr ? posted_receive->find(make_flag(fingerprint, fifo.step())) : nullptr;
  }
  /// Returns true if the arrived message cannot be pulled and its writer has not copied it into the ring yet.
  bool waits_for_ring() const { return pulls && fifo.is_refused() && fifo.zero_copy_at() != 0; }
  /// Requests a message in the ring that cannot be pulled, and wakes its writer.
  void refuse() const {
    fifo.refuse();
    if (writer_bell != nullptr) ring(*writer_bell);
  }
  void release(uint32_t n) {
    if (posted_receive != nullptr) [[unlikely]]
      posted_receive->take_back();
    fifo.release(n);
    if (writer_bell != nullptr) [[likely]]
      ring(*writer_bell);
  }
};

class PortTable {
 public:
  PortTable(Rank rank, Transport& transport) : rank_(rank), transport_(transport) {}
  /// Returns the writing end of the connection to `readers`. There is one port for each reader. If their group is not
  /// kUnicast, the connection is a multicast.
  Expected<WritePort*> writer(const std::vector<Port>& readers, bool inline_only);
  /// Returns the reading end of the connection from `from`. Its writer may not have made it yet.
  ReadPort* reader(const Port& from, bool inline_only);
  /// Connects the port if the writer has made the connection. Returns true if so.
  bool try_connect(ReadPort& port);
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
};

}  // namespace rondo
