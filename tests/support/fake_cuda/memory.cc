// Device memory in memfds, pinned and registered host memory, IPC handles, attributes of an address.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "support/fake_cuda/state.h"

namespace rondo::testing::fake {

bool may_reach(State& st, int from, int to);
bool is_lossy(State& st, int from, int to);

namespace {

constexpr size_t kBlockBytes = size_t{2} << 20, kGrain = 512, kPage = 4096;
constexpr size_t kSmall = size_t{1} << 20;  // larger allocations have their own block
constexpr uint32_t kSlots = kPage / sizeof(uint64_t);
constexpr uint8_t kFresh = 0xA5, kFreed = 0xDB, kGuard = 0xC7;
constexpr size_t kFilled = size_t{1} << 20;  // filled at both ends of an allocation

size_t round_up(size_t n, size_t grain) { return (n + grain - 1) / grain * grain; }

// Reserves addresses for `bytes`, a multiple of 2 MiB, and the page after them.
uintptr_t take_addresses(State& st, size_t bytes) {
  const size_t whole = bytes + kBlockBytes;
  if (const auto it = st.free_addresses.find(whole); it != st.free_addresses.end()) {
    const uintptr_t at = it->second;
    st.free_addresses.erase(it);
    return at;
  }
  if (st.region_end - st.region_next < whole) return 0;
  const uintptr_t at = st.region_next;
  st.region_next += whole;
  return at;
}

void give_addresses(State& st, uintptr_t at, size_t bytes) {
  const size_t whole = bytes + kBlockBytes;
  // Forbids reads and writes there from now on.
  mmap(reinterpret_cast<void*>(at), whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (st.machine.reuse_addresses) st.free_addresses.emplace(whole, at);
}

bool map_file(uintptr_t at, int fd, size_t bytes, size_t offset = 0, int sharing = MAP_SHARED) {
  return mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, sharing | MAP_FIXED, fd,
              static_cast<off_t>(offset)) != MAP_FAILED;
}

Block* make_block(State& st, size_t bytes) {
  const uintptr_t at = take_addresses(st, bytes);
  if (at == 0) return nullptr;
  Block b;
  b.fd = memfd_create("rondo-fake-cuda", MFD_CLOEXEC);
  if (b.fd < 0 || ftruncate(b.fd, static_cast<off_t>(bytes + kPage)) != 0 || !map_file(at, b.fd, bytes + kPage)) {
    if (b.fd >= 0) close(b.fd);
    return nullptr;
  }
  b.base = at;
  b.bytes = bytes;
  b.generations = reinterpret_cast<std::atomic<uint64_t>*>(at + bytes);
  st.blocks.push_back(b);
  return &st.blocks.back();
}

void drop_block(State& st, Block* block) {
  for (Block*& open : st.open_block)
    if (open == block) open = nullptr;
  close(block->fd);
  give_addresses(st, block->base, block->bytes);
  st.blocks.remove_if([block](const Block& b) { return &b == block; });
}

void fill(uintptr_t at, uint8_t value, size_t bytes) { std::memset(reinterpret_cast<void*>(at), value, bytes); }
void fill_ends(uintptr_t at, uint8_t value, size_t bytes) {
  fill(at, value, std::min(bytes, kFilled));
  if (bytes > kFilled) fill(std::max(at + kFilled, at + bytes - kFilled), value, std::min(kFilled, bytes - kFilled));
}

// Size with the guard behind the allocation.
size_t footprint(size_t bytes) { return round_up(bytes, kGrain) + kGrain; }

void check_guard(State& st, const Allocation& a) {
  const auto* p = reinterpret_cast<const uint8_t*>(a.base);
  for (size_t i = a.bytes; i < footprint(a.bytes); ++i) {
    if (p[i] == kGuard) continue;
    st.damage += fmt::format("byte {} behind the device memory of {} bytes at {:#x} was written\n", i - a.bytes,
                             a.bytes, a.base);
    return;
  }
}

/// Contents of a handle; 64 bytes.
struct Ticket {
  uint32_t magic = 0;
  int32_t pid = 0, fd = 0;
  uint32_t slot = 0;
  uint64_t block_bytes = 0, offset = 0, bytes = 0, generation = 0;
  uint64_t device = 0;  // hash of its uuid: ordinals differ between processes
};
static_assert(sizeof(Ticket) <= sizeof(IpcMemHandle));
constexpr uint32_t kMagic = 0x0C0DA1CE;

uint64_t hash_of(const Uuid& uuid) {
  uint64_t h = 1469598103934665603u;
  for (const uint8_t b : uuid.bytes) h = (h ^ b) * 1099511628211u;
  return h;
}

Result add_host(State& st, Allocation::Kind kind, void* ptr, size_t bytes, int device) {
  const auto base = reinterpret_cast<uintptr_t>(ptr);
  st.memory[base] = {kind, base, bytes, device, st.next_id++};
  return kSuccess;
}

}  // namespace

Allocation* find_memory(State& st, uintptr_t address, size_t bytes) {
  auto it = st.memory.upper_bound(address);
  if (it == st.memory.begin()) return nullptr;
  Allocation& a = (--it)->second;
  return address - a.base < a.bytes && bytes <= a.bytes - (address - a.base) ? &a : nullptr;
}

void release_memory(State& st) {
  for (const auto& [base, a] : st.memory)
    if (a.kind == Allocation::Kind::kPinned) munmap(reinterpret_cast<void*>(base), round_up(a.bytes, kPage));
  for (const Block& b : st.blocks) close(b.fd);
  munmap(reinterpret_cast<void*>(st.region), st.region_end - st.region);
}

Result fake_mem_alloc(DevicePtr* ptr, size_t bytes) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  if (ptr == nullptr || bytes == 0) return kErrorInvalidValue;
  const auto d = static_cast<size_t>(context->device);
  if (bytes > st.machine.devices[d].memory_bytes - st.memory_used[d]) return kErrorOutOfMemory;
  Block* block = bytes <= kSmall ? st.open_block[d] : nullptr;
  if (block != nullptr && (block->bytes - block->used < footprint(bytes) || block->slots == kSlots)) block = nullptr;
  if (block == nullptr) {
    block = make_block(st, round_up(footprint(bytes), kBlockBytes));
    if (block == nullptr) return kErrorOutOfMemory;
    if (bytes <= kSmall) st.open_block[d] = block;
  }
  Allocation a{Allocation::Kind::kDevice, block->base + block->used, bytes, context->device, st.next_id++};
  a.block = block;
  a.slot = block->slots++;
  block->used += footprint(bytes);
  ++block->live;
  block->generations[a.slot].store(a.id, std::memory_order_release);
  fill_ends(a.base, kFresh, bytes);
  fill(a.base + bytes, kGuard, footprint(bytes) - bytes);
  st.memory_used[d] += bytes;
  st.memory[a.base] = a;
  *ptr = a.base;
  return kSuccess;
}

Result fake_mem_free(DevicePtr ptr) {
  State& st = state();
  {
    Section section(st.mutex);
    Result r;
    if (need_context(st, r) == nullptr) return r;
    if (ptr == 0) return kSuccess;
    if (r = may_disturb(st); r != kSuccess) return r;
    const auto it = st.memory.find(ptr);
    if (it == st.memory.end() || it->second.kind != Allocation::Kind::kDevice) return kErrorInvalidValue;
    r = st.contexts[static_cast<size_t>(it->second.device)]->broken;
    if (r != kSuccess) return r;
  }
  ContextHandle* context = nullptr;
  {
    Section section(st.mutex);
    context = st.contexts[static_cast<size_t>(st.memory.at(ptr).device)].get();
  }
  synchronize(st, *context);
  Section section(st.mutex);
  const auto it = st.memory.find(ptr);
  if (it == st.memory.end()) return kErrorInvalidValue;  // freed by another thread meanwhile
  const Allocation a = it->second;
  check_guard(st, a);
  a.block->generations[a.slot].store(0, std::memory_order_release);
  fill_ends(a.base, kFreed, a.bytes);
  st.memory_used[static_cast<size_t>(a.device)] -= a.bytes;
  st.memory.erase(it);
  if (--a.block->live == 0) drop_block(st, a.block);
  return kSuccess;
}

Result fake_mem_get_address_range(DevicePtr* base, size_t* bytes, DevicePtr ptr) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  if (need_context(st, r) == nullptr) return r;
  const Allocation* a = find_memory(st, ptr, 1);
  if (a == nullptr || a->kind == Allocation::Kind::kRegistered) return kErrorNotFound;
  if (base != nullptr) *base = a->base;
  if (bytes != nullptr) *bytes = a->bytes;
  return kSuccess;
}

Result fake_mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  const auto d = static_cast<size_t>(context->device);
  *total_bytes = st.machine.devices[d].memory_bytes;
  *free_bytes = *total_bytes - st.memory_used[d];
  return kSuccess;
}

Result fake_mem_host_alloc(void** ptr, size_t bytes, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  if (bytes == 0 || (flags & ~7u) != 0) return kErrorInvalidValue;
  void* at = mmap(nullptr, round_up(bytes, kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return kErrorOutOfMemory;
  fill_ends(reinterpret_cast<uintptr_t>(at), kFresh, bytes);
  *ptr = at;
  return add_host(st, Allocation::Kind::kPinned, at, bytes, context->device);
}

Result fake_mem_free_host(void* ptr) {
  State& st = state();
  {
    Section section(st.mutex);
    Result r;
    if (need_context(st, r) == nullptr) return r;
    if (r = may_disturb(st); r != kSuccess) return r;
    const auto it = st.memory.find(reinterpret_cast<uintptr_t>(ptr));
    if (it == st.memory.end() || it->second.kind != Allocation::Kind::kPinned) return kErrorInvalidValue;
  }
  for (const auto& c : st.contexts) synchronize(st, *c);  // all devices see pinned memory
  Section section(st.mutex);
  const auto it = st.memory.find(reinterpret_cast<uintptr_t>(ptr));
  if (it == st.memory.end()) return kErrorInvalidValue;
  munmap(ptr, round_up(it->second.bytes, kPage));
  st.memory.erase(it);
  return kSuccess;
}

Result fake_mem_host_register(void* ptr, size_t bytes, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  if (ptr == nullptr || bytes == 0 || (flags & ~15u) != 0) return kErrorInvalidValue;
  const auto begin = reinterpret_cast<uintptr_t>(ptr);
  auto next = st.memory.lower_bound(begin);
  if (next != st.memory.end() && next->first < begin + bytes) return kErrorHostMemoryAlreadyRegistered;
  if (find_memory(st, begin, 1) != nullptr) return kErrorHostMemoryAlreadyRegistered;
  return add_host(st, Allocation::Kind::kRegistered, ptr, bytes, context->device);
}

Result fake_mem_host_unregister(void* ptr) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  if (need_context(st, r) == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  const auto it = st.memory.find(reinterpret_cast<uintptr_t>(ptr));
  if (it == st.memory.end() || it->second.kind != Allocation::Kind::kRegistered) return kErrorHostMemoryNotRegistered;
  st.memory.erase(it);
  return kSuccess;
}

Result fake_mem_host_get_device_pointer(DevicePtr* dptr, void* ptr, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  if (need_context(st, r) == nullptr) return r;
  const Allocation* a = find_memory(st, reinterpret_cast<uintptr_t>(ptr), 1);
  const bool host = a != nullptr && (a->kind == Allocation::Kind::kPinned || a->kind == Allocation::Kind::kRegistered);
  if (flags != 0 || !host) return kErrorInvalidValue;
  *dptr = reinterpret_cast<uintptr_t>(ptr);
  return kSuccess;
}

Result fake_pointer_attribute(void* data, int attribute, DevicePtr ptr) {
  State& st = state();
  Section section(st.mutex);
  const Allocation* a = find_memory(st, ptr, 1);
  if (a == nullptr) return kErrorInvalidValue;
  const bool host = a->kind == Allocation::Kind::kPinned || a->kind == Allocation::Kind::kRegistered;
  const auto put = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return kSuccess;
  };
  switch (attribute) {
    case kPointerMemoryType: return put(host ? kMemoryTypeHost : kMemoryTypeDevice);
    case kPointerBufferId: return put(a->id);
    case kPointerIsManaged: return put(0u);
    case kPointerDeviceOrdinal: return put(a->device);
    case kPointerIpcCapable: return put(a->kind == Allocation::Kind::kDevice && a->ipc ? 1u : 0u);
    default: return kErrorInvalidValue;
  }
}

Result fake_ipc_get_mem_handle(IpcMemHandle* handle, DevicePtr ptr) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  if (need_context(st, r) == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  const Allocation* a = find_memory(st, ptr, 1);
  if (handle == nullptr || a == nullptr || a->kind != Allocation::Kind::kDevice || !a->ipc) return kErrorInvalidValue;
  const Ticket ticket{kMagic,   st.pid.load(),   a->block->fd,
                      a->slot,  a->block->bytes, a->base - a->block->base,
                      a->bytes, a->id,           hash_of(st.machine.devices[static_cast<size_t>(a->device)].uuid)};
  std::memset(handle->bytes, 0, sizeof handle->bytes);
  std::memcpy(handle->bytes, &ticket, sizeof ticket);
  return kSuccess;
}

Result fake_ipc_open_mem_handle(DevicePtr* ptr, IpcMemHandle handle, unsigned flags) {
  State& st = state();
  Section section(st.mutex);
  Result r;
  const ContextHandle* context = need_context(st, r);
  if (context == nullptr) return r;
  if (r = may_disturb(st); r != kSuccess) return r;
  Ticket t;
  std::memcpy(&t, handle.bytes, sizeof t);
  if (ptr == nullptr || flags != kIpcLazyPeerAccess || t.magic != kMagic) return kErrorInvalidValue;
  if (t.pid == st.pid) return kErrorInvalidContext;  // the driver's answer to a process's own handle
  int device = -1;
  for (size_t d = 0; d < st.machine.devices.size(); ++d)
    if (hash_of(st.machine.devices[d].uuid) == t.device) device = static_cast<int>(d);
  if (device < 0) return kErrorInvalidDevice;  // hidden from this process
  if (!may_reach(st, context->device, device)) return kErrorPeerAccessUnsupported;
  std::string key(reinterpret_cast<const char*>(&t), sizeof t);
  key += fmt::format("@{}", context->device);
  for (auto& [base, a] : st.memory)
    if (a.kind == Allocation::Kind::kImported && a.key == key) {
      ++a.opened;
      *ptr = base;
      return kSuccess;
    }
  const int fd = open(fmt::format("/proc/{}/fd/{}", t.pid, t.fd).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kErrorInvalidHandle;  // that process has ended or freed it
  const uintptr_t at = take_addresses(st, t.block_bytes);
  const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(t.block_bytes + kPage);
  bool mapped = at != 0 && whole && map_file(at, fd, t.block_bytes + kPage);
  if (mapped && t.offset == 0 && is_lossy(st, context->device, device))
    mapped = map_file(at + kPage, fd, t.block_bytes - kPage, kPage, MAP_PRIVATE);
  close(fd);
  const bool lives = mapped && t.slot < kSlots &&
                     reinterpret_cast<std::atomic<uint64_t>*>(at + t.block_bytes)[t.slot].load(
                         std::memory_order_acquire) == t.generation;
  if (!lives) {
    if (at != 0) give_addresses(st, at, t.block_bytes);
    return at == 0 ? kErrorOutOfMemory : kErrorInvalidHandle;
  }
  Allocation a{Allocation::Kind::kImported, at + t.offset, t.bytes, device, st.next_id++};
  a.mapped = at;
  a.mapped_bytes = t.block_bytes;
  a.key = std::move(key);
  *ptr = a.base;
  st.memory[a.base] = std::move(a);
  return kSuccess;
}

Result fake_ipc_close_mem_handle(DevicePtr ptr) {
  State& st = state();
  ContextHandle* context = nullptr;
  {
    Section section(st.mutex);
    Result r;
    context = need_context(st, r);
    if (context == nullptr) return r;
    if (r = may_disturb(st); r != kSuccess) return r;
    const auto it = st.memory.find(ptr);
    if (it == st.memory.end() || it->second.kind != Allocation::Kind::kImported) return kErrorInvalidValue;
    if (it->second.opened > 1) {
      --it->second.opened;
      return kSuccess;
    }
  }
  synchronize(st, *context);  // as cuMemFree does
  Section section(st.mutex);
  const auto it = st.memory.find(ptr);
  if (it == st.memory.end() || --it->second.opened > 0) return kErrorInvalidValue;
  give_addresses(st, it->second.mapped, it->second.mapped_bytes);
  st.memory.erase(it);
  return kSuccess;
}

}  // namespace rondo::testing::fake

namespace rondo::testing {

void FakeCuda::forbid_ipc(cuda::DevicePtr ptr) {
  fake::State& st = fake::state();
  fake::Section section(st.mutex);
  fake::find_memory(st, ptr, 1)->ipc = false;
}

}  // namespace rondo::testing
