// DeviceBoard: what a rank of a device communicator shows the others in host memory: where its staging memory lies and
// which halves of connections it has made there; and the flags of the stream engine, which streams wait for.
//
// Thread safety: one writer, its owner, but for the flags; entries are published by their key, with release.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/driver/driver.h"
#include "transport/relay.h"
#include "transport/transport.h"

namespace rondo {

/// One block of a rank's staging memory, as the others can open it.
struct SlabEntry {
  uint64_t bytes;             // 0: not there yet; stored with release, last
  cuda::DevicePtr address;    // in the owner's process
  uint64_t on_host;           // 1: pinned host memory, at `address` in the owner's host region
  cuda::IpcMemHandle handle;  // of device memory
};

/// A half of a connection: a reader's inbox (lines and data), or a writer's counters, or all of a multicast.
struct HalfEntry {
  uint64_t key;  // 0: free
  uint32_t slab, counters_slab;
  uint64_t inbox_offset, counters_offset;
};

struct DeviceBoard {
  static constexpr uint32_t kMaxSlabs = 256;
  uint32_t max_halves, max_slots;
  SlabEntry slabs[kMaxSlabs];

  static uint32_t halves_for(int nranks) { return static_cast<uint32_t>(256 * nranks + 256); }
  static uint32_t slots_for(int nranks) { return static_cast<uint32_t>(256 * nranks + 256); }
  static uint64_t bytes_for(int nranks) {
    return halves_offset() + sizeof(HalfEntry) * halves_for(nranks) + 64 + sizeof(SlotFlags) * slots_for(nranks);
  }
  static constexpr uint64_t halves_offset() { return (sizeof(DeviceBoard) + 63) / 64 * 64; }
  HalfEntry* halves() { return reinterpret_cast<HalfEntry*>(reinterpret_cast<std::byte*>(this) + halves_offset()); }
  SlotFlags* slots() {
    const auto end = reinterpret_cast<uintptr_t>(halves() + max_halves);
    return reinterpret_cast<SlotFlags*>((end + 63) / 64 * 64);
  }
};

}  // namespace rondo
