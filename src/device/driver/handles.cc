#include "device/driver/handles.h"

#include <cstring>

namespace rondo::cuda {
namespace {

struct Here {
  const Driver* driver;
  Context context;
};

// The driver and the current context, in which new objects are made.
Expected<Here> here() {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  Context context = nullptr;
  RONDO_TRY(check(d->context_get_current(&context), "cuCtxGetCurrent"));
  if (context == nullptr) return Status(StatusCode::kInvalidArgument, "no CUDA context is current in this thread");
  return Here{d, context};
}

}  // namespace

Status upload(Stream stream, DevicePtr to, const void* from, size_t bytes) {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  RONDO_TRY(check(d->memcpy_host_to_device_async(to, from, bytes, stream), "cuMemcpyHtoDAsync"));
  return check(d->stream_synchronize(stream), "cuStreamSynchronize");
}

Expected<PrimaryContext> PrimaryContext::retain(Device device) {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  Context context = nullptr;
  RONDO_TRY(check(d->primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain"));
  return PrimaryContext(device, context);
}
PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) driver()->primary_context_release(device_);
}

Expected<DeviceMemory> DeviceMemory::make(size_t bytes) {
  RONDO_TRY_ASSIGN(const Here at, here());
  DevicePtr ptr = 0;
  RONDO_TRY(check(at.driver->mem_alloc(&ptr, bytes), "cuMemAlloc"));
  return DeviceMemory(ptr, bytes, at.context);
}
DeviceMemory::~DeviceMemory() {
  if (handle_ == 0) return;
  CurrentContext current(context_);
  driver()->mem_free(handle_);
}

Expected<PinnedMemory> PinnedMemory::make_unset(size_t bytes) {
  RONDO_TRY_ASSIGN(const Here at, here());
  void* ptr = nullptr;
  RONDO_TRY(check(at.driver->mem_host_alloc(&ptr, bytes, kHostAllocPortable | kHostAllocMapped), "cuMemHostAlloc"));
  PinnedMemory memory(ptr, bytes, at.context);
  RONDO_TRY(check(at.driver->mem_host_get_device_pointer(&memory.on_device_, ptr, 0), "cuMemHostGetDevicePointer"));
  return memory;
}
Expected<PinnedMemory> PinnedMemory::make(size_t bytes) {
  auto memory = make_unset(bytes);
  if (memory.ok()) std::memset(memory->as(), 0, bytes);
  return memory;
}
PinnedMemory::~PinnedMemory() {
  if (handle_ == nullptr) return;
  CurrentContext current(context_);
  driver()->mem_free_host(handle_);
}

Expected<RegisteredMemory> RegisteredMemory::make(std::span<std::byte> memory) {
  RONDO_TRY_ASSIGN(const Here at, here());
  RONDO_TRY(
      check(at.driver->mem_host_register(memory.data(), memory.size(), kHostRegisterPortable | kHostRegisterMapped),
            "cuMemHostRegister"));
  RegisteredMemory registered(memory.data(), at.context);
  RONDO_TRY(check(at.driver->mem_host_get_device_pointer(&registered.on_device_, memory.data(), 0),
                  "cuMemHostGetDevicePointer"));
  return registered;
}
RegisteredMemory::~RegisteredMemory() {
  if (handle_ == nullptr) return;
  CurrentContext current(context_);
  driver()->mem_host_unregister(handle_);
}

Expected<OwnedStream> OwnedStream::make(int priority) {
  RONDO_TRY_ASSIGN(const Here at, here());
  Stream stream = nullptr;
  RONDO_TRY(check(at.driver->stream_create(&stream, kStreamNonBlocking, priority), "cuStreamCreateWithPriority"));
  return OwnedStream(stream, at.context);
}
OwnedStream::~OwnedStream() {
  if (handle_ == nullptr) return;
  CurrentContext current(context_);
  driver()->stream_destroy(handle_);
}

Expected<OwnedEvent> OwnedEvent::make(Times times) {
  RONDO_TRY_ASSIGN(const Here at, here());
  Event event = nullptr;
  RONDO_TRY(check(at.driver->event_create(&event, times == Times::kNo ? kEventDisableTiming : 0), "cuEventCreate"));
  return OwnedEvent(event, at.context);
}
OwnedEvent::~OwnedEvent() {
  if (handle_ == nullptr) return;
  CurrentContext current(context_);
  driver()->event_destroy(handle_);
}

}  // namespace rondo::cuda
