// The stream engine's slots between hosts (transport/proxy.h): sends the slots that streams have filled, and reports
// the slots that they have emptied.
//
//   writer's slot (here)   full = 1  --kSlot: data-->   full = 1   reader's slot (there)
//                         empty = 1  <--kSlotEmpty---   empty = 1
//
// The proxy resets the flags that it has seen. A slot is full and empty alternately, therefore its messages cannot
// overtake each other.
//
// Thread safety: the owner's lock, except for the flags, which streams set too.
#pragma once

#include <span>
#include <vector>

#include "transport/net/remote_fifo.h"
#include "transport/proxy.h"

namespace rondo::net {

class ProxySlots {
 public:
  ProxySlots(Rank rank, RemoteFifos& fifos) : rank_(rank), fifos_(fifos) {}
  void add(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags, uint64_t slot_bytes);
  /// True if there was work.
  bool carry(RailSet& rails);

  /// The destination of a kSlot message. Error: kInternal (no such slot).
  Expected<ReceiveTarget> place(const Header& header, size_t bytes);
  /// For kSlot and kSlotEmpty. Error: as place().
  Status arrived(const Header& header);

 private:
  struct Connection {
    ConnectionKey key;
    std::byte* data;
    std::span<SlotFlags> flags;
    uint64_t slot_bytes;
    std::vector<DataHeader> headers;  // by slot; must stay until they are sent
  };
  Expected<Connection*> find(const Header& header, bool as_writer);
  const Rank rank_;
  RemoteFifos& fifos_;  // counts the messages
  std::vector<Connection> connections_;
};

}  // namespace rondo::net
