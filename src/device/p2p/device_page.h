// DevicePage: host memory of one rank of a device communicator, beside its StatusPage. It shows the other ranks this
// rank's staging memory and its halves of connections, and contains the stream engine's flags.
// Thread safety: only the owner writes, except the flags. A stored key publishes an entry with release.
#pragma once

#include <cstdint>

#include "device/driver/driver.h"
#include "transport/proxy.h"

namespace rondo {

/// One block of a rank's staging memory, as other ranks open it.
struct SlabEntry {
  uint64_t bytes;             // 0: not there yet; stored last, with release
  cuda::DevicePtr address;    // in the owner's process
  cuda::IpcMemHandle handle;
};

/// A half of a connection: a reader's inbox (lines and data), a writer's counters, or a whole multicast.
struct HalfEntry {
  uint64_t key;  // 0: free
  uint32_t slab, counters_slab;
  uint64_t inbox_offset, counters_offset;
};

struct DevicePage {
  static constexpr uint32_t kMaxSlabs = 256;
  uint32_t max_entries;  // of halves, and of slots
  SlabEntry slabs[kMaxSlabs];

  static uint32_t entries_for(int nranks) { return static_cast<uint32_t>(256 * nranks + 256); }
  static uint64_t bytes_for(int nranks) {
    return halves_offset() + 64 + uint64_t{entries_for(nranks)} * (sizeof(HalfEntry) + sizeof(SlotFlags));
  }
  static constexpr uint64_t halves_offset() { return (sizeof(DevicePage) + 63) / 64 * 64; }
  HalfEntry* halves() { return reinterpret_cast<HalfEntry*>(reinterpret_cast<std::byte*>(this) + halves_offset()); }
  SlotFlags* slots() {
    const auto end = reinterpret_cast<uintptr_t>(halves() + max_entries);
    return reinterpret_cast<SlotFlags*>((end + 63) / 64 * 64);
  }
};

}  // namespace rondo
