#include "transport/net/proxy_slots.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"

namespace rondo::net {
namespace {

// Streams set a word and wait for its reset, or the reverse: no other thread changes it meanwhile.
bool take(uint32_t& flag) {
  const std::atomic_ref<uint32_t> f(flag);
  if (f.load(std::memory_order_acquire) == 0) return false;
  f.store(0, std::memory_order_relaxed);
  return true;
}
void set(uint32_t& flag) { std::atomic_ref<uint32_t>(flag).store(1, std::memory_order_release); }

}  // namespace

void ProxySlots::add(const ConnectionKey& key, std::byte* data, std::span<SlotFlags> flags, uint64_t slot_bytes) {
  connections_.push_back({key, data, flags, slot_bytes, std::vector<DataHeader>(flags.size())});
}

bool ProxySlots::carry(RailSet& rails) {
  bool any = false;
  for (Connection& c : connections_) {
    const bool writes = c.key.writer == rank_;
    for (size_t i = 0; i < c.flags.size(); ++i) {
      if (!take(writes ? c.flags[i].full : c.flags[i].empty)) continue;
      any = true;
      if (!writes) {
        rails.send_copy(c.key.writer, header_of(MessageKind::kSlotEmpty, c.key, i), nullptr, 0);
        continue;
      }
      Header& h = c.headers[i].header;
      h = header_of(MessageKind::kSlot, c.key, i);
      h.session = rails.session();
      h.from = rank_;
      rails.send(c.key.reader, c.headers[i], c.data + i * c.slot_bytes, c.flags[i].bytes);
      fifos_.count_sent(c.key.reader);
    }
  }
  return any;
}

Expected<ProxySlots::Connection*> ProxySlots::find(const Header& h, bool as_writer) {
  const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const Connection& c) {
    const ConnectionKey& k = c.key;
    return k.tag == h.tag && k.group == h.group && k.channel == h.channel &&
           (as_writer ? k.writer == rank_ && k.reader == h.from : k.reader == rank_ && k.writer == h.from);
  });
  if (found != connections_.end() && h.step < found->flags.size()) return &*found;
  return make_error(StatusCode::kInternal,
                    "rank {}: rank {} sends to a slot that does not exist (tag {}, "
                    "slot {})",
                    rank_, h.from, h.tag, h.step);
}

Expected<ReceiveTarget> ProxySlots::place(const Header& header, size_t bytes) {
  RONDO_TRY_ASSIGN(const Connection* c, find(header, false));
  if (bytes > c->slot_bytes) return malformed(rank_, header, bytes);
  return ReceiveTarget{c->data + header.step * c->slot_bytes};
}

Status ProxySlots::arrived(const Header& header) {
  const bool as_writer = header.kind == MessageKind::kSlotEmpty;
  RONDO_TRY_ASSIGN(const Connection* c, find(header, as_writer));
  SlotFlags& flags = c->flags[header.step];
  set(as_writer ? flags.empty : flags.full);
  if (!as_writer) fifos_.count_received(header.from);
  return {};
}

}  // namespace rondo::net
