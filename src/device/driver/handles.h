// What rondo owns of the CUDA driver, as values that give it back: primary contexts, device memory, pinned host memory,
// streams, events.
//
// Each remembers the context in which it was made and is given back in that one, whichever is current then. Errors of
// giving back are passed over: they come from a process that is ending, or repeat what an operation has reported
// already. Giving back memory waits for the device (cuMemFree does), so it has no place between operations.
//
// Thread safety: values; the driver below is thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "device/driver/driver.h"

namespace rondo::cuda {

/// A value that is moved, not copied, with the context that it belongs to.
template <class Handle>
class Owned {
 public:
  Owned() = default;
  Owned(Handle handle, Context context) : handle_(handle), context_(context) {}
  Owned(Owned&& o) noexcept : handle_(std::exchange(o.handle_, Handle{})), context_(std::exchange(o.context_, {})) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(context_, o.context_);
    return *this;
  }

 protected:
  Handle handle_{};
  Context context_ = nullptr;
};

/// A device's primary context, retained.
class PrimaryContext {
 public:
  PrimaryContext() = default;
  /// Errors: kUnsupported (no driver), kSystem.
  static Expected<PrimaryContext> retain(Device device);
  ~PrimaryContext();
  PrimaryContext(PrimaryContext&& o) noexcept : device_(o.device_), context_(std::exchange(o.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(context_, o.context_);
    return *this;
  }
  Context get() const { return context_; }
  Device device() const { return device_; }

 private:
  PrimaryContext(Device device, Context context) : device_(device), context_(context) {}
  Device device_ = 0;
  Context context_ = nullptr;
};

/// Device memory of the current context (cuMemAlloc: legacy, so that IPC handles work).
class DeviceMemory : Owned<DevicePtr> {
 public:
  DeviceMemory() = default;
  /// bytes > 0. Errors: kUnsupported (no driver), kExhausted, kSystem.
  static Expected<DeviceMemory> make(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&&) noexcept = default;
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    Owned::operator=(std::move(o));
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  DevicePtr get() const { return handle_; }
  template <class T = std::byte>
  T* as() const {
    return reinterpret_cast<T*>(handle_);
  }
  size_t size_bytes() const { return bytes_; }

 private:
  DeviceMemory(DevicePtr ptr, size_t bytes, Context context) : Owned(ptr, context), bytes_(bytes) {}
  size_t bytes_ = 0;
};

/// Pinned host memory that all devices see.
class PinnedMemory : Owned<void*> {
 public:
  PinnedMemory() = default;
  /// bytes > 0; zeroed. Errors as DeviceMemory.
  static Expected<PinnedMemory> make(size_t bytes);
  /// Whose contents are undefined: for regions of which only a part may ever be used.
  static Expected<PinnedMemory> make_unset(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&&) noexcept = default;
  PinnedMemory& operator=(PinnedMemory&& o) noexcept {
    Owned::operator=(std::move(o));
    std::swap(bytes_, o.bytes_);
    std::swap(on_device_, o.on_device_);
    return *this;
  }
  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(handle_);
  }
  /// The same memory as kernels of the current context at make() see it.
  DevicePtr on_device() const { return on_device_; }
  size_t size_bytes() const { return bytes_; }

 private:
  PinnedMemory(void* ptr, size_t bytes, Context context) : Owned(ptr, context), bytes_(bytes) {}
  size_t bytes_ = 0;
  DevicePtr on_device_ = 0;
};

/// Memory of the caller's, pinned for a while.
class RegisteredMemory : Owned<void*> {
 public:
  RegisteredMemory() = default;
  /// Errors: kUnsupported (no driver), kSystem (registered already, among others).
  static Expected<RegisteredMemory> make(std::span<std::byte> memory);
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&&) noexcept = default;
  RegisteredMemory& operator=(RegisteredMemory&&) noexcept = default;
  DevicePtr on_device() const { return on_device_; }

 private:
  RegisteredMemory(void* ptr, Context context) : Owned(ptr, context) {}
  DevicePtr on_device_ = 0;
};

/// Copies into device memory and returns when the bytes are there, for every stream. cuMemcpyHtoD alone returns when
/// they have been read from pageable memory, and streams that do not wait for the default one do not wait for the rest.
Status upload(Stream stream, DevicePtr to, const void* from, size_t bytes);

/// A stream of the current context that does not wait for the legacy default stream.
class OwnedStream : Owned<Stream> {
 public:
  OwnedStream() = default;
  /// A lower number is a higher priority, 0 the lowest. Errors: kUnsupported (no driver), kSystem.
  static Expected<OwnedStream> make(int priority = 0);
  ~OwnedStream();
  OwnedStream(OwnedStream&&) noexcept = default;
  OwnedStream& operator=(OwnedStream&&) noexcept = default;
  Stream get() const { return handle_; }
  Context context() const { return context_; }

 private:
  OwnedStream(Stream stream, Context context) : Owned(stream, context) {}
};

/// An event of the current context; with times it is slower.
class OwnedEvent : Owned<Event> {
 public:
  enum class Times { kNo, kYes };
  OwnedEvent() = default;
  /// Errors: kUnsupported (no driver), kSystem.
  static Expected<OwnedEvent> make(Times times = Times::kNo);
  ~OwnedEvent();
  OwnedEvent(OwnedEvent&&) noexcept = default;
  OwnedEvent& operator=(OwnedEvent&&) noexcept = default;
  Event get() const { return handle_; }
  Context context() const { return context_; }

 private:
  OwnedEvent(Event event, Context context) : Owned(event, context) {}
};

}  // namespace rondo::cuda
