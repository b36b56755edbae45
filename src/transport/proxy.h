// Proxy: carries messages between hosts for its users' FIFOs in pinned memory. Devices post to these FIFOs
// and read from them without the engine.
//
//   device --posts--> FIFO here ==messages==> FIFO there --reads--> device
//          <--space-- counter   <==credits===  counter  <--frees--
//
// Both ends name a connection by its key, with a channel (ConnectionKey::channel > 0), and provide their memory; the
// proxy keeps the two equal. The writer must not post before is_received() is true for each reader.
//
// Slots of the stream engine work the same way (SlotFlags): a full slot here becomes full there, an empty slot there
// becomes empty here.
//
// Thread safety: any thread. Registered memory must stay until the transport has ended (Transport::keep).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/fifo.h"
#include "rondo/types.h"

namespace rondo {

struct ConnectionKey;

/// One message slot of the stream engine. Streams wait until a word is 1 and reset it to 0 themselves: no value changes
/// from one use to the next, therefore a captured graph can be replayed.
struct alignas(64) SlotFlags {
  uint32_t full;   // set by the writer's stream, awaited by the reader's
  uint32_t bytes;  // of the message; set before `full`, for a proxied slot
  uint32_t pad0[14];
  uint32_t empty;  // set by the reader's stream (and initially), awaited by the writer's
  uint32_t pad1[15];
};

class Proxy {
 public:
  virtual ~Proxy() = default;
  /// For the writer: sends messages posted to `channels` (channel c + 1 of the key) to `readers`. Once per key.
  virtual void send_from(const ConnectionKey& key, std::span<const FifoView> channels,
                         std::span<const Rank> readers) = 0;
  /// For the reader: receives them. `channels` have one read counter each. Once per key.
  virtual void receive_into(const ConnectionKey& key, std::span<const FifoView> channels) = 0;
  /// Either end of a connection of slots of `slot_bytes` each; a multicast is a connection to each reader.
  virtual void carry_slots(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags,
                           uint64_t slot_bytes) = 0;
  /// True once `reader` has registered its memory. Never blocks; call again.
  virtual bool is_received(const ConnectionKey& key, Rank reader) = 0;
  /// Sets whether devices may post. While they may, the proxy looks for messages all the time, when idle every 20 us.
  virtual void attend(bool on) = 0;
};

}  // namespace rondo
