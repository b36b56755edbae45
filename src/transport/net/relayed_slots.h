// The stream engine's slots between hosts (transport/relay.h): whichever of them streams have filled is sent, whichever
// they have emptied is told.
//
//   writer's slot (here)   full = 1  --kSlot: data-->   full = 1   reader's slot (there)
//                         empty = 1  <--kSlotEmpty---   empty = 1
//
// The relay resets what it has seen. A slot is full and empty by turns, so its messages cannot overtake one another.
//
// Thread safety: the owner's lock, but for the flags, which streams set too.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "transport/net/remote_fifo.h"
#include "transport/relay.h"

namespace rondo::net {

class RelayedSlots {
 public:
  RelayedSlots(Rank rank, RemoteFifos& fifos) : rank_(rank), fifos_(fifos) {}
  void add(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags, uint64_t slot_bytes);
  /// True when there was something.
  bool carry(Wire& wire);

  /// Of kSlot and kSlotEmpty: where the data belong; whether it was one of ours.
  std::byte* place(const Header& header, size_t bytes);
  bool arrived(const Header& header);

 private:
  struct Connection {
    ConnectionKey key;
    std::byte* data;
    std::span<SlotFlags> flags;
    uint64_t slot_bytes;
    std::vector<DataHeader> headers;  // by slot: they are read until they are out
  };
  Connection* find(const Header& header, bool as_writer);
  const Rank rank_;
  RemoteFifos& fifos_;  // counts the messages
  std::vector<Connection> connections_;
};

}  // namespace rondo::net
