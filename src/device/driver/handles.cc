#include "device/driver/handles.h"

#include <cstring>

#include "base/error.h"

namespace rondo::cuda {

template <class Handle, Result (*Driver::*kRelease)(Handle)>
Expected<const Driver*> Owned<Handle, kRelease>::enter() {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  RONDO_TRY(check(d->context_get_current(&context_), "cuCtxGetCurrent"));
  if (context_ == nullptr) return invalid_argument("no CUDA context is current in this thread");
  return d;
}

Status upload(Stream stream, DevicePtr to, const void* from, size_t bytes) {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  RONDO_TRY(check(d->stream_synchronize(stream), "cuStreamSynchronize"));
  RONDO_TRY(check(d->memcpy_host_to_device_async(to, from, bytes, stream), "cuMemcpyHtoDAsync"));
  return check(d->stream_synchronize(stream), "cuStreamSynchronize");
}

Status download(Stream stream, void* to, DevicePtr from, size_t bytes) {
  RONDO_TRY_ASSIGN(const Driver* d, need_driver());
  RONDO_TRY(check(d->stream_synchronize(stream), "cuStreamSynchronize"));
  RONDO_TRY(check(d->memcpy_async(reinterpret_cast<DevicePtr>(to), from, bytes, stream), "cuMemcpyAsync"));
  return check(d->stream_synchronize(stream), "cuStreamSynchronize");
}

Status clear(Stream stream, DevicePtr to, size_t bytes) {
  RONDO_TRY(check(driver()->memset_d8_async(to, 0, bytes, stream), "cuMemsetD8Async"));
  return check(driver()->stream_synchronize(stream), "cuStreamSynchronize");
}

Status record(Event event, Stream stream) { return check(driver()->event_record(event, stream), "cuEventRecord"); }

Status wait_for(Stream stream, Event event, unsigned flags) {
  return check(driver()->stream_wait_event(stream, event, flags), "cuStreamWaitEvent");
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
  DeviceMemory made;
  RONDO_TRY_ASSIGN(const Driver* d, made.enter());
  RONDO_TRY(check(d->mem_alloc(&made.handle_, bytes), "cuMemAlloc"));
  made.bytes_ = bytes;
  return made;
}

Expected<PinnedMemory> PinnedMemory::make_unset(size_t bytes) {
  PinnedMemory made;
  RONDO_TRY_ASSIGN(const Driver* d, made.enter());
  RONDO_TRY(check(d->mem_host_alloc(&made.handle_, bytes, kHostAllocPortable | kHostAllocMapped), "cuMemHostAlloc"));
  RONDO_TRY(check(d->mem_host_get_device_pointer(&made.on_device_, made.handle_, 0), "cuMemHostGetDevicePointer"));
  made.bytes_ = bytes;
  return made;
}
Expected<PinnedMemory> PinnedMemory::make(size_t bytes) {
  auto memory = make_unset(bytes);
  if (memory.ok()) std::memset(memory->as(), 0, bytes);
  return memory;
}

Expected<RegisteredMemory> RegisteredMemory::make(std::span<std::byte> memory) {
  RegisteredMemory made;
  RONDO_TRY_ASSIGN(const Driver* d, made.enter());
  RONDO_TRY(check(d->mem_host_register(memory.data(), memory.size(), kHostRegisterPortable | kHostRegisterMapped),
                  "cuMemHostRegister"));
  made.handle_ = memory.data();
  RONDO_TRY(check(d->mem_host_get_device_pointer(&made.on_device_, memory.data(), 0), "cuMemHostGetDevicePointer"));
  return made;
}

Expected<OwnedStream> OwnedStream::make() {
  OwnedStream made;
  RONDO_TRY_ASSIGN(const Driver* d, made.enter());
  RONDO_TRY(check(d->stream_create(&made.handle_, kStreamNonBlocking, 0), "cuStreamCreateWithPriority"));
  return made;
}

Expected<OwnedEvent> OwnedEvent::make(Times times) {
  OwnedEvent made;
  RONDO_TRY_ASSIGN(const Driver* d, made.enter());
  RONDO_TRY(check(d->event_create(&made.handle_, times == Times::kNo ? kEventDisableTiming : 0), "cuEventCreate"));
  return made;
}

}  // namespace rondo::cuda
