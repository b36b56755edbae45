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

/// A move-only handle of an object of the current context. kRelease gives it back.
template <class Handle, Result (*Driver::*kRelease)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& o) noexcept : handle_(std::exchange(o.handle_, Handle{})), context_(std::exchange(o.context_, {})) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(context_, o.context_);
    return *this;
  }
  ~Owned() {
    if (handle_ == Handle{}) return;
    CurrentContext current(context_);
    (driver()->*kRelease)(handle_);
  }
  Handle get() const { return handle_; }
  /// nullptr: there is no object.
  Context context() const { return context_; }

 protected:
  /// Remembers the current context, in which the object is made next. Errors: kUnsupported (no driver), kCuda.
  Expected<const Driver*> enter();
  Handle handle_{};
  Context context_ = nullptr;
};

/// A retained primary context of a device.
class PrimaryContext {
 public:
  PrimaryContext() = default;
  /// Errors: kUnsupported (no driver), kCuda.
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

/// Device memory. Uses the legacy cuMemAlloc, so that IPC handles work.
class DeviceMemory : public Owned<DevicePtr, &Driver::mem_free> {
 public:
  /// bytes > 0. Errors: kUnsupported (no driver), kExhausted, kCuda.
  static Expected<DeviceMemory> make(size_t bytes);
  template <class T = std::byte>
  T* as() const {
    return reinterpret_cast<T*>(handle_);
  }
  size_t size_bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

/// Pinned host memory that all devices can access.
class PinnedMemory : public Owned<void*, &Driver::mem_free_host> {
 public:
  /// bytes > 0; zeroed. Errors as DeviceMemory.
  static Expected<PinnedMemory> make(size_t bytes);
  /// With undefined contents, for regions that may be used only in part.
  static Expected<PinnedMemory> make_unset(size_t bytes);
  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(handle_);
  }
  /// The memory's device address in the context that was current at make().
  DevicePtr on_device() const { return on_device_; }
  size_t size_bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  DevicePtr on_device_ = 0;
};

/// The caller's memory, pinned temporarily.
class RegisteredMemory : public Owned<void*, &Driver::mem_host_unregister> {
 public:
  /// Errors: kUnsupported (no driver), kCuda (for example already registered).
  static Expected<RegisteredMemory> make(std::span<std::byte> memory);
  DevicePtr on_device() const { return on_device_; }

 private:
  DevicePtr on_device_ = 0;
};

// Copies of pageable host memory, after the stream's earlier work. While the driver waits in such a copy, it holds a
// lock that other threads need for their launches. If the stream waits for a collective of those threads, nobody goes
// on. Therefore these functions wait for the stream before the copy.

/// Returns when the bytes are visible to every stream. (cuMemcpyHtoD returns when the host's memory has been read.)
Status upload(Stream stream, DevicePtr to, const void* from, size_t bytes);
/// Returns when the bytes are in host memory.
Status download(Stream stream, void* to, DevicePtr from, size_t bytes);
/// Fills device memory with zeros and waits for the end.
Status clear(Stream stream, DevicePtr to, size_t bytes);
Status record(Event event, Stream stream);
/// Later work of the stream begins after the event's last record.
Status wait_for(Stream stream, Event event, unsigned flags = 0);

/// A stream that does not wait for the legacy default stream.
class OwnedStream : public Owned<Stream, &Driver::stream_destroy> {
 public:
  /// Errors: kUnsupported (no driver), kCuda.
  static Expected<OwnedStream> make();
};

/// An event. With times it is slower.
class OwnedEvent : public Owned<Event, &Driver::event_destroy> {
 public:
  enum class Times { kNo, kYes };
  /// Errors: kUnsupported (no driver), kCuda.
  static Expected<OwnedEvent> make(Times times = Times::kNo);
};

}  // namespace rondo::cuda
