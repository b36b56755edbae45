// Ports: this rank's ends of the communicator's connections, made on first use and kept.
//
// A connection is shared by all programs that name it, so its step counter lives here, in the end. Operations take
// turns on an end: each reserves its steps when it is queued (`reserved`), and may touch the end only when `step` has
// reached the first of them.
//
// Thread safety: all of it belongs to the communicator's driver.
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
  std::vector<Doorbell*> reader_bells;  // who may sleep for what we post
  uint64_t reserved = 0;                // steps that queued operations will have made
  Loan* loans = nullptr;                // by line; nullptr: all messages go through the ring
  bool lends_by_address = false;        // to readers that pull
  const std::byte* lent_now = nullptr;  // of the message that is about to be posted: what they are to pull

  /// The loan of the next line; nullptr where it cannot be had.
  Loan* loan() const {
    if (loans == nullptr) [[likely]]
      return nullptr;
    Loan& l = loans[fifo.step() & (fifo.num_lines() - 1)];
    return l.is_out() ? nullptr : &l;  // its line has come round before the data came back
  }
  /// Makes n steps visible, or one message of the ring. The last hop before the wire.
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
  Doorbell* writer_bell = nullptr;  // nullptr: it cannot be woken from here
  uint64_t reserved = 0;
  bool connected = false;      // until then `fifo` looks at a line that never arrives
  Landing* landing = nullptr;  // nullptr: all messages come through the ring
  bool pulls = false;          // some come by their address

  /// Where the message that has arrived has landed; nullptr: in the ring.
  const std::byte* landed(uint32_t fingerprint) const {
    return landing != nullptr ? landing->find(make_flag(fingerprint, fifo.step())) : nullptr;
  }
  /// Whether the message that has arrived cannot be pulled, and its writer has not put it into the ring yet.
  bool waits_for_ring() const { return pulls && fifo.is_refused() && fifo.lent_at() != 0; }
  /// It cannot be pulled: its writer is to put it into the ring.
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
  /// The writing end of the connection to `readers` (one port per reader; multicast when their group says so).
  Expected<WritePort*> writer(const std::vector<Port>& readers, bool inline_only);
  ReadPort* reader(const Port& from, bool inline_only);
  /// Looks whether the writer has made the connection by now.
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
