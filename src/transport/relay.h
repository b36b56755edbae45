// Relay: connections between hosts whose memory somebody else brings: FIFOs in pinned memory, which devices post into
// and read from without the engine's knowledge.
//
//   device --posts--> FIFO here ==messages==> FIFO there --reads--> device
//          <--room--  counter   <==credits===  counter  <--frees--
//
// Both ends name a connection by its key, in which a channel is set (ConnectionKey::channel > 0), and each brings
// memory of its own; the relay keeps the two alike. Nothing is sent before the reader has named its memory.
//
// Slots of the stream engine are carried likewise (SlotFlags): what is full here becomes full there, what is empty
// there becomes empty here.
//
// Thread safety: any thread. Memory that was named must stay until the transport has ended (Transport::keep).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/fifo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

struct ConnectionKey;

/// One message slot of the stream engine. Streams wait until a word is 1 and reset it to 0 themselves, so that a
/// captured graph can be replayed: no value changes from one use to the next.
struct alignas(64) SlotFlags {
  uint32_t full;   // set by the writer's stream, awaited by the reader's
  uint32_t bytes;  // of the message; set before `full`, where a relay carries it
  uint32_t pad0[14];
  uint32_t empty;  // set by the reader's stream (and once at the beginning), awaited by the writer's
  uint32_t pad1[15];
};

class Relay {
 public:
  virtual ~Relay() = default;
  /// This rank writes: what is posted into `channels` (channel c + 1 of the key) goes to `readers`. Once for each key.
  virtual void send_from(const ConnectionKey& key, std::span<const FifoView> channels,
                         std::span<const Rank> readers) = 0;
  /// This rank reads: it goes there. `channels` have one read counter each. Once for each key.
  virtual void receive_into(const ConnectionKey& key, std::span<const FifoView> channels) = 0;
  /// The same for slots of `slot_bytes` each; a multicast is a connection to each reader.
  virtual void send_slots(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags,
                          uint64_t slot_bytes) = 0;
  virtual void receive_slots(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags,
                             uint64_t slot_bytes) = 0;
  /// True once `reader` has named its memory. Ask again: never blocks.
  virtual bool is_received(const ConnectionKey& key, Rank reader) = 0;
  /// Whether anything may be posted from now on: then the relay looks all the time, with a processor's help.
  virtual void attend(bool on) = 0;
};

}  // namespace rondo
