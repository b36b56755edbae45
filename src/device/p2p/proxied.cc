// Ends of connections between hosts: pinned memory on either side. The host transport's proxy keeps both equal.
#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"
#include "device/p2p/cuda_transport.h"

namespace rondo {

// Returns zeroed memory. Calls may run while it is pinned, because they do not wait for this thread.
Expected<std::byte*> CudaTransport::take_pinned(uint64_t bytes) {
  bytes = round_up(bytes, 4096);
  if (pinned_rest_.bytes < bytes) {
    const uint64_t slab = round_up(bytes, kSlabBytes);
    RONDO_TRY_ASSIGN(auto memory, cuda::PinnedMemory::make(slab));
    pinned_rest_ = {{0, 0, memory.as()}, slab};
    kept_->host.push_back(std::move(memory));
    staging_bytes_ += slab;
  }
  return pinned_rest_.take(bytes).at;
}

// A writer's end is ready when its readers on other hosts have announced their memory. The thread that receives the
// messages must not allocate memory, because it must not wait for the device.
Expected<std::optional<CudaTransport::Ends>> CudaTransport::proxy_ends(const DeviceKey& connection) {
  const ConnectionKey& key = connection.key;
  const ConnectionForm form = connection.form;
  const bool writes = key.writer == rank_;
  if (!writes && is_here(key.writer)) return std::optional<Ends>(Ends());  // a local peer's multicast is in its memory
  Proxy* const proxy = host_.proxy();
  const bool lines = form == ConnectionForm::kLines;
  if (proxy == nullptr || (!lines && form != ConnectionForm::kRing))
    return make_error(StatusCode::kInternal, "rank {}: the transport cannot carry slots of LL or LL128", rank_);
  ConnectionKey name = key;
  name.inline_only = lines;
  auto found = std::ranges::find_if(
      proxied_, [&](const Proxied& r) { return r.connection.key == key && r.connection.form == form; });
  std::vector<Rank> readers;
  for (Rank r = 0; r < nranks_ && writes; ++r)
    if (key.group == kUnicast ? r == key.reader
                              : !is_here(r) && (key.group != kGroupHost ||
                                                devices_[static_cast<size_t>(r)].host_number == options_.host_number))
      readers.push_back(r);
  if (found == proxied_.end()) {
    Ends ends;
    if (writes && key.group != kUnicast) {  // in memory where local peers poll it
      RONDO_TRY(make_half(connection, true));
      const HalfEntry* const half = find(rank_, half_name(connection, true));
      RONDO_TRY_ASSIGN(ends.inbox, reach(rank_, half->slab, half->inbox_offset));
      RONDO_TRY_ASSIGN(ends.counters, reach(rank_, half->counters_slab, half->counters_offset));
      ends.readers = static_cast<uint32_t>(nranks_);
    } else {
      const uint64_t inbox = layout_.inbox_bytes(form);
      RONDO_TRY_ASSIGN(ends.inbox, take_pinned(inbox + layout_.counters_bytes(1)));
      ends.counters = ends.inbox + inbox;
    }
    std::vector<FifoView> channels;
    for (uint32_t c = 0; c < layout_.max_channels; ++c)
      channels.push_back(layout_.view(form, ends.inbox, ends.counters, ends.readers, c));
    if (writes) proxy->send_from(name, channels, readers);
    else proxy->receive_into(name, channels);
    found = proxied_.insert(proxied_.end(), {connection, ends, !writes});
  }
  if (!found->ready) found->ready = std::ranges::all_of(readers, [&](Rank r) { return proxy->is_received(name, r); });
  return found->ready ? std::optional<Ends>(found->ends) : std::nullopt;
}

Expected<std::optional<CudaTransport::StreamSlots>> CudaTransport::proxy_slots(const ConnectionKey& key, Rank reader,
                                                                               uint64_t slot_bytes) {
  Proxy* const proxy = host_.proxy();
  if (proxy == nullptr)
    return make_error(StatusCode::kInternal, "rank {}: the transport cannot send messages to other hosts", rank_);
  ConnectionKey name = key;
  name.reader = reader;
  name.inline_only = false;  // slots have only one kind
  auto found = std::ranges::find_if(proxy_streams_, [&](const ProxyStream& s) { return s.key == name; });
  const bool writes = key.writer == rank_;
  if (found == proxy_streams_.end()) {
    ProxyStream s{name, {}, {}, !writes};
    RONDO_TRY_ASSIGN(std::byte* const flags, take_pinned(sizeof(SlotFlags) * kStreamSlots));
    RONDO_TRY_ASSIGN(s.slots.data, take_pinned(slot_bytes * kStreamSlots));
    s.slots.flags_on_device = reinterpret_cast<cuda::DevicePtr>(flags);  // the address is the same
    s.slots.crosses = true;
    s.flags = {reinterpret_cast<SlotFlags*>(flags), kStreamSlots};
    for (SlotFlags& f : s.flags) f.empty = writes ? 1 : 0;
    proxy->carry_slots(name, s.slots.data, s.flags, slot_bytes);
    const std::lock_guard lock(kept_mutex_);
    found = proxy_streams_.insert(proxy_streams_.end(), s);
  }
  if (!found->ready) found->ready = proxy->is_received(name, reader);
  return found->ready ? std::optional<StreamSlots>(found->slots) : std::nullopt;
}

}  // namespace rondo
