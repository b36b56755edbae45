// Ports: this rank's ends of the communicator's connections, made on first use and kept.
//
// All programs that name a connection share it, therefore its step counter is here. Operations take turns on an end:
// each reserves its steps when it is queued (`reserved`), and may use the end only once `step` has reached the first of
// them.
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
  uint64_t reserved = 0;                // the step after all queued operations
  Loan* loans = nullptr;                // by line; nullptr: all messages go through the ring
  bool lends_by_address = false;        // zero-copy sends by address, to readers that pull
  const std::byte* lent_now = nullptr;  // data of the message that is posted next, if readers are to pull it

  /// The zero-copy send of the next line; nullptr if unavailable.
  Loan* loan() const {
    if (loans == nullptr) [[likely]]
      return nullptr;
    Loan& l = loans[fifo.step() & (fifo.num_lines() - 1)];
    return l.is_out() ? nullptr : &l;  // its line was reused before the data were returned
  }
  /// Makes n steps visible, or one message of the ring. The last call before the wire.
  void post(uint32_t n, uint32_t fingerprint) {
    fifo.post(n, fingerprint);
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
  void post_data(uint32_t bytes, uint32_t fingerprint) {
    fifo.post_data(bytes, fingerprint, reinterpret_cast<uint64_t>(std::exchange(lent_now, nullptr)));
    for (Doorbell* bell : reader_bells) ring(*bell);
  }
};

struct ReadPort {
  ConnectionKey key;
  FifoReader<HostMem, HostGroup> fifo;
  Doorbell* writer_bell = nullptr;  // nullptr: cannot be woken from here
  uint64_t reserved = 0;
  bool connected = false;      // before that, `fifo` reads a line that never arrives
  Landing* landing = nullptr;  // nullptr: all messages come through the ring
  bool pulls = false;          // some messages come by address

  /// The arrived message's data in its posted receive; nullptr: in the ring.
  const std::byte* landed(uint32_t fingerprint) const {
    return landing != nullptr ? landing->find(make_flag(fingerprint, fifo.step())) : nullptr;
  }
  /// True if the arrived message cannot be pulled and its writer has not put it into the ring yet.
  bool waits_for_ring() const { return pulls && fifo.is_refused() && fifo.lent_at() != 0; }
  /// Asks the writer to put a message that cannot be pulled into the ring.
  void refuse() const {
    fifo.refuse();
    if (writer_bell != nullptr) ring(*writer_bell);
  }
  void release(uint32_t n) {
    if (landing != nullptr) [[unlikely]]
      landing->take_back();
    fifo.release(n);
    if (writer_bell != nullptr) [[likely]]
      ring(*writer_bell);
  }
};

class PortTable {
 public:
  PortTable(Rank rank, Transport& transport) : rank_(rank), transport_(transport) {}
  /// The writing end of the connection to `readers` (one port per reader; multicast if their group is one).
  Expected<WritePort*> writer(const std::vector<Port>& readers, bool inline_only);
  ReadPort* reader(const Port& from, bool inline_only);
  /// Checks whether the writer has made the connection.
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
