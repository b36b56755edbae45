// Owning handles of CUDA driver objects: primary contexts, device memory, pinned host memory, streams, events.
//
// Each handle remembers its context and is released in it, whichever context is current then. Errors of a release are
// ignored: they come from a process that is ending, or repeat an operation's error. Releasing memory waits for the
// device (cuMemFree does), so do not do it between operations. Thread safety: values; the driver below is thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "device/driver/driver.h"

namespace rondo::cuda {

/// A move-only handle with its context.
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

/// A retained primary context of a device.
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

/// Device memory of the current context. Uses the legacy cuMemAlloc, so that IPC handles work.
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

/// Pinned host memory that all devices can access.
class PinnedMemory : Owned<void*> {
 public:
  PinnedMemory() = default;
  /// bytes > 0; zeroed. Errors as DeviceMemory.
  static Expected<PinnedMemory> make(size_t bytes);
  /// With undefined contents, for regions that may be used only in part.
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
  /// The memory's device address in the context that was current at make().
  DevicePtr on_device() const { return on_device_; }
  size_t size_bytes() const { return bytes_; }

 private:
  PinnedMemory(void* ptr, size_t bytes, Context context) : Owned(ptr, context), bytes_(bytes) {}
  size_t bytes_ = 0;
  DevicePtr on_device_ = 0;
};

/// The caller's memory, pinned temporarily.
class RegisteredMemory : Owned<void*> {
 public:
  RegisteredMemory() = default;
  /// Errors: kUnsupported (no driver), kSystem (for example already registered).
  static Expected<RegisteredMemory> make(std::span<std::byte> memory);
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&&) noexcept = default;
  RegisteredMemory& operator=(RegisteredMemory&&) noexcept = default;
  DevicePtr on_device() const { return on_device_; }

 private:
  RegisteredMemory(void* ptr, Context context) : Owned(ptr, context) {}
  DevicePtr on_device_ = 0;
};

/// Copies to device memory and returns when the bytes are visible to every stream. cuMemcpyHtoD returns when pageable
/// memory has been read, and streams that do not wait for the default stream do not wait for the rest.
Status upload(Stream stream, DevicePtr to, const void* from, size_t bytes);

/// A stream of the current context that does not wait for the legacy default stream.
class OwnedStream : Owned<Stream> {
 public:
  OwnedStream() = default;
  /// Lower numbers have higher priority; 0 is the lowest. Errors: kUnsupported (no driver), kSystem.
  static Expected<OwnedStream> make(int priority = 0);
  ~OwnedStream();
  OwnedStream(OwnedStream&&) noexcept = default;
  OwnedStream& operator=(OwnedStream&&) noexcept = default;
  Stream get() const { return handle_; }
  Context context() const { return context_; }

 private:
  OwnedStream(Stream stream, Context context) : Owned(stream, context) {}
};

/// An event of the current context. With times it is slower.
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
