// The memory of connections: slabs of a rank's device memory, their parts, and how peers find them.
#include "device/p2p/cuda_transport.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/round_up.h"

namespace rondo {
namespace {

// A rank's half of a connection on its DevicePage. kInbox: lines and data, made by the reader. kOutbox: counters, made
// by the writer, or all of a multicast. kStream: slots of the stream engine, made by the reader.
enum class Half : uint64_t { kInbox = 1, kOutbox = 2, kStream = 3 };

uint64_t pack(const ConnectionKey& k, ConnectionForm form, Half half, Rank other) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(half) << 60 | static_cast<uint64_t>(form) << 57 |
         static_cast<uint64_t>(k.group != kUnicast) << 56 | static_cast<uint64_t>(other + 1) << 32 |
         static_cast<uint64_t>(k.group) << 16 | k.tag;
}

}  // namespace

// Allocates memory of this rank as a slab that peers can open.
Expected<CudaTransport::SlabRemainder> CudaTransport::take_slab(uint64_t bytes) {
  if (num_slabs_ == DevicePage::kMaxSlabs)
    return make_error(StatusCode::kExhausted, "rank {} has {} blocks of staging memory, the maximum of a communicator",
                      rank_, num_slabs_);
  const cuda::Driver* d = cuda::driver();
  bytes = round_up(bytes, kSlabBytes);
  RONDO_TRY_ASSIGN(auto memory, cuda::DeviceMemory::make(bytes));
  RONDO_TRY(cuda::clear(setup_, memory.get(), bytes));
  SlabEntry& entry = page_of(rank_).slabs[num_slabs_];
  entry.address = memory.get();
  // Peers of this process do not need the handle. Others will see whether they can open it.
  if (shares_with_processes())
    RONDO_TRY(cuda::check(d->ipc_get_mem_handle(&entry.handle, memory.get()), "cuIpcGetMemHandle"));
  std::atomic_ref<uint64_t>(entry.bytes).store(bytes, std::memory_order_release);
  std::byte* const at = memory.as();
  hold(std::move(memory));
  staging_bytes_ += bytes;
  return SlabRemainder{{num_slabs_++, 0, at}, bytes};
}

Expected<CudaTransport::SlabAddress> CudaTransport::carve(uint64_t bytes, bool on_host) {
  SlabRemainder& rest = on_host ? host_rest_ : device_rest_;
  bytes = round_up(bytes, 4096);
  if (rest.bytes < bytes) {
    if (on_host)
      return make_error(StatusCode::kExhausted,
                        "rank {}: the pinned memory for links through the host is used up ({} MiB are left, {} are "
                        "needed): use fewer blocks (RONDO_DEVICE_BLOCKS)",
                        rank_, rest.bytes >> 20, bytes >> 20);
    RONDO_TRY_ASSIGN(rest, take_slab(std::max(bytes, kSlabBytes)));
  }
  const SlabAddress place = rest.take(bytes);
  if (on_host) std::memset(place.at, 0, bytes);  // like slabs of the device
  return place;
}

// Address of a place in a rank's slab in this process.
Expected<std::byte*> CudaTransport::reach(Rank owner, uint32_t slab, uint64_t offset) {
  auto& slabs = reached_[static_cast<size_t>(owner)];
  if (slab < slabs.size() && slabs[slab] != nullptr) return slabs[slab] + offset;
  const Status not_made(StatusCode::kInternal,
                        fmt::format("rank {} refers to a block of memory that rank {} has not made", owner, owner));
  if (slab >= DevicePage::kMaxSlabs) return not_made;
  if (slabs.size() <= slab) slabs.resize(slab + 1);
  const SlabEntry& entry = page_of(owner).slabs[slab];
  if (std::atomic_ref<uint64_t>(const_cast<uint64_t&>(entry.bytes)).load(std::memory_order_acquire) == 0)
    return not_made;
  const cuda::Driver* d = cuda::driver();
  const DeviceOfRank &own = devices_[static_cast<size_t>(rank_)], &theirs = devices_[static_cast<size_t>(owner)];
  if (own.same_process(theirs)) {
    if (own.ordinal != theirs.ordinal && slab == 0) {
      cuda::Device peer = 0;
      RONDO_TRY(cuda::check(d->device_get(&peer, theirs.ordinal), "cuDeviceGet"));
      RONDO_TRY_ASSIGN(const auto context, cuda::PrimaryContext::retain(peer));
      const cuda::Result enabled = d->context_enable_peer_access(context.get(), 0);
      if (enabled != cuda::kErrorPeerAccessAlreadyEnabled) RONDO_TRY(cuda::check(enabled, "cuCtxEnablePeerAccess"));
    }
    slabs[slab] = reinterpret_cast<std::byte*>(entry.address);
  } else {
    cuda::DevicePtr mapped = 0;
    RONDO_TRY(
        cuda::check(d->ipc_open_mem_handle(&mapped, entry.handle, cuda::kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
    opened_.push_back(mapped);
    slabs[slab] = reinterpret_cast<std::byte*>(mapped);
  }
  return slabs[slab] + offset;
}

Status CudaTransport::publish(uint64_t key, const SlabAddress* inbox, const SlabAddress* counters) {
  DevicePage& page = page_of(rank_);
  if (num_halves_ == page.max_entries)
    return make_error(StatusCode::kExhausted,
                      "rank {} has made {} connections on its device, the maximum of a communicator", rank_,
                      num_halves_);
  HalfEntry& entry = page.halves()[num_halves_++];
  if (inbox != nullptr) {
    entry.slab = inbox->slab;
    entry.inbox_offset = inbox->offset;
  }
  if (counters != nullptr) {
    entry.counters_slab = counters->slab;
    entry.counters_offset = counters->offset;
  }
  std::atomic_ref<uint64_t>(entry.key).store(key, std::memory_order_release);
  return {};
}

const HalfEntry* CudaTransport::find(Rank owner, uint64_t key) const {
  DevicePage& page = page_of(owner);
  for (uint32_t i = 0; i < page.max_entries; ++i) {
    const uint64_t found = std::atomic_ref<uint64_t>(page.halves()[i].key).load(std::memory_order_acquire);
    if (found == key) return &page.halves()[i];
    if (found == 0) return nullptr;
  }
  return nullptr;
}

// A connection uses host memory if one of its readers, or its writer, cannot reach the other's device.
bool CudaTransport::through_host(const ConnectionKey& key) const {
  if (key.group != kUnicast) return through_host_ || crosses(key);  // equal on all ranks
  const Rank other = key.writer == rank_ ? key.reader : key.writer;
  return links_[static_cast<size_t>(other)].way == DeviceLink::Way::kHost;
}

uint64_t CudaTransport::half_name(const DeviceKey& connection, bool as_writer) {
  const auto& [key, form] = connection;
  return as_writer ? pack(key, form, Half::kOutbox, key.reader) : pack(key, form, Half::kInbox, key.writer);
}

Status CudaTransport::make_half(const DeviceKey& connection, bool as_writer) {
  const auto& [key, form] = connection;
  const bool unicast = key.group == kUnicast;
  const uint64_t name = half_name(connection, as_writer);
  if (find(rank_, name) != nullptr) return {};
  const bool on_host = through_host(key);
  SlabAddress inbox, counters;
  if (!as_writer || !unicast) {
    RONDO_TRY_ASSIGN(inbox, carve(layout_.inbox_bytes(form), on_host));
  }
  if (as_writer) {
    const auto readers = static_cast<uint32_t>(unicast ? 1 : nranks_);
    RONDO_TRY_ASSIGN(counters, carve(layout_.counters_bytes(readers), on_host));
  }
  return publish(name, !as_writer || !unicast ? &inbox : nullptr, as_writer ? &counters : nullptr);
}

Expected<std::optional<CudaTransport::Ends>> CudaTransport::find_ends(const DeviceKey& connection) {
  const auto& [key, form] = connection;
  const bool unicast = key.group == kUnicast;
  if (crosses(key)) {
    RONDO_TRY_ASSIGN(const auto proxied, proxy_ends(connection));
    // Writer and readers of a multicast on one host use the same memory, as below.
    if (unicast || !is_here(key.writer) || !proxied) return proxied;
  }
  if (key.writer == rank_) RONDO_TRY(make_half(connection, true));
  if (unicast && key.reader == rank_) RONDO_TRY(make_half(connection, false));  // a rank may send to itself
  const HalfEntry* const out = find(key.writer, half_name(connection, true));
  const HalfEntry* const in = unicast ? find(key.reader, half_name(connection, false)) : out;
  if (out == nullptr || in == nullptr) return std::optional<Ends>();
  Ends ends;
  RONDO_TRY_ASSIGN(ends.inbox, reach(unicast ? key.reader : key.writer, in->slab, in->inbox_offset));
  RONDO_TRY_ASSIGN(ends.counters, reach(key.writer, out->counters_slab, out->counters_offset));
  ends.readers = static_cast<uint32_t>(unicast ? 1 : nranks_);
  return std::optional<Ends>(ends);
}

Expected<std::optional<CudaTransport::StreamSlots>> CudaTransport::stream_slots(const ConnectionKey& key, Rank reader,
                                                                                uint64_t slot_bytes) {
  // A multicast is a separate connection to each local reader.
  if (!is_here(key.writer) || !is_here(reader)) return proxy_slots(key, reader, slot_bytes);
  const uint64_t name = pack(key, ConnectionForm::kRing, Half::kStream, key.writer);
  const HalfEntry* entry = find(reader, name);
  if (entry == nullptr && reader == rank_) {
    if (num_slots_ + kStreamSlots > page_of(rank_).max_entries)
      return make_error(StatusCode::kExhausted,
                        "rank {} has {} message slots for streams, the maximum of a communicator", rank_, num_slots_);
    RONDO_TRY_ASSIGN(SlabAddress data,
                     carve(slot_bytes * kStreamSlots, through_host({key.writer, reader, key.tag, kUnicast})));
    SlabAddress flags;
    flags.slab = num_slots_;  // for a stream's half the second place holds the index of its flags
    num_slots_ += kStreamSlots;
    RONDO_TRY(publish(name, &data, &flags));
    entry = find(reader, name);
  }
  if (entry == nullptr) return std::optional<StreamSlots>();
  StreamSlots slots;
  RONDO_TRY_ASSIGN(slots.data, reach(reader, entry->slab, entry->inbox_offset));
  DevicePage& page = page_of(reader);
  const auto offset =
      reinterpret_cast<std::byte*>(page.slots() + entry->counters_slab) - reinterpret_cast<std::byte*>(&page);
  slots.flags_on_device = pages_on_device_[static_cast<size_t>(reader)] + static_cast<uint64_t>(offset);
  return std::optional<StreamSlots>(slots);
}

void CudaTransport::release_streams() {
  auto release = [](SlotFlags& flags) {
    std::atomic_ref<uint32_t>(flags.full).store(1, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(flags.empty).store(1, std::memory_order_relaxed);
  };
  for (DevicePage* const page : pages_)
    for (uint32_t i = 0; page != nullptr && i < page->max_entries; ++i) release(page->slots()[i]);
  const std::lock_guard lock(kept_mutex_);
  for (const ProxyStream& s : proxy_streams_)
    for (SlotFlags& flags : s.flags) release(flags);
}

Expected<std::byte*> CudaTransport::take_memory(uint64_t bytes) {
  RONDO_TRY_ASSIGN(const SlabAddress place, carve(bytes, false));
  return place.at;
}

Expected<void*> CudaTransport::alloc(uint64_t bytes) {
  RONDO_TRY_ASSIGN(auto memory, cuda::DeviceMemory::make(bytes));
  RONDO_TRY(cuda::clear(setup_, memory.get(), bytes));
  void* const at = memory.as();
  hold(std::move(memory));
  return at;
}

void CudaTransport::hold(cuda::DeviceMemory memory) {
  const std::lock_guard lock(kept_mutex_);
  kept_->device.push_back(std::move(memory));
}

bool CudaTransport::is_allocated(const void* ptr) const {
  const std::lock_guard lock(kept_mutex_);
  return std::ranges::any_of(kept_->device, [&](const auto& m) { return m.as() == ptr; });
}

Status CudaTransport::free(void* ptr) {
  cuda::DeviceMemory mine;  // freed without the lock, because that may wait for the device
  const std::lock_guard lock(kept_mutex_);
  auto& all = kept_->device;
  const auto it = std::ranges::find_if(all, [&](const cuda::DeviceMemory& m) { return m.as() == ptr; });
  if (it == all.end()) return invalid_argument("rank {}: ptr was not made by alloc of this communicator", rank_);
  mine = std::move(*it);
  all.erase(it);
  return {};
}

Expected<void*> CudaTransport::alloc_shared(uint64_t bytes, const Gather& gather,
                                            const SharedRegions::Install& install) {
  auto made = alloc(bytes);
  if (regions_->reach() != SharedRegions::Reach::kAgreed) return made;
  void* const ptr = made.ok() ? *made : nullptr;
  const Status shared = regions_->add({"alloc", ptr, bytes, true, made.status()}, gather, install);
  if (shared.ok()) return ptr;
  if (ptr != nullptr) (void)free(ptr);
  return shared;
}

Status CudaTransport::free_shared(void* ptr, const Gather& gather) {
  if (regions_->reach() != SharedRegions::Reach::kAgreed) return free(ptr);
  Status own;
  if (!is_allocated(ptr)) own = invalid_argument("ptr was not made by alloc of this communicator");
  RONDO_TRY(regions_->end({"free", ptr, 0, false, own}, gather));  // else it stays until the communicator's end
  return free(ptr);
}

Status CudaTransport::register_memory(void* ptr, uint64_t bytes, const Gather& gather,
                                      const SharedRegions::Install& install) {
  Status own;
  if (is_allocated(ptr)) own = invalid_argument("ptr was made by alloc, so all ranks can already access it");
  return regions_->add({"register", ptr, bytes, false, own}, gather, install);
}

Status CudaTransport::deregister_memory(void* ptr, const Gather& gather) {
  Status own;
  if (is_allocated(ptr)) own = invalid_argument("ptr was made by alloc: free it instead");
  return regions_->end({"deregister", ptr, 0, false, own}, gather);
}

bool CudaTransport::may_be_direct() const {
  switch (regions_->reach()) {
    case SharedRegions::Reach::kNothing: return false;
    case SharedRegions::Reach::kAgreed: return regions_->any_agreed();
    default: return true;
  }
}

// Kernels find peers' buffers by region number. The host does not touch them.
RemoteAddress CudaTransport::describe(const void* ptr, uint64_t bytes) const {
  const uint32_t region = regions_->find(ptr, bytes);
  if (region == SharedRegions::kNowhere) return {};
  return {region, reinterpret_cast<uint64_t>(ptr)};
}

std::byte* CudaTransport::resolve(Rank, const RemoteAddress& address) const {
  return reinterpret_cast<std::byte*>(address.offset_bytes);
}

}  // namespace rondo
