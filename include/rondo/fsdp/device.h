// Device: the memory and streams that an Engine runs on. The host is the default and does everything at once on the
// caller's thread. A CUDA device executes it later, in streams.
//
// Work goes along two lines, each in issue order. Events order one line after the other:
//
//   compute         |forward 1|forward 2|...          the caller's stream, and the engine's updates in between
//   communication   |gather 2|gather 3|...            the engine's own stream
//
// Thread safety: one thread at a time. Its memory must not outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rondo/communicator.h"
#include "rondo/fsdp/optimizer.h"

namespace rondo::fsdp {

enum class Line : uint8_t { kCompute, kCommunication };

/// One step of an optimizer on n elements, as optimizer_step takes it.
struct StepCall {
  OptimizerConfig config;
  int64_t step;
  float scale;
  uint64_t num_elems;
  float* params;
  const float* grads;
  float* states[2];
};

/// Lanes of Device::add_squares.
inline constexpr uint32_t kNormLanes = 32768;

class RONDO_API Device {
 public:
  /// A point in a line, at its latest recording.
  struct Event;

  virtual ~Device() = default;  // defined here: the library has no RTTI, and users may derive
  /// Memory of communicators whose buffers are on this device.
  virtual rondo::Memory memory() const = 0;
  /// CUDA device number; -1: the host.
  virtual int ordinal() const = 0;
  /// The host memory that this device copies from and to asynchronously; the host returns itself.
  virtual Device& host() = 0;
  /// CallOptions::stream of calls in that line; nullptr on the host.
  virtual void* stream(Line line) const = 0;

  /// Zeros, aligned to 64 bytes. Errors: kSystem, kExhausted.
  virtual Expected<std::byte*> allocate(uint64_t bytes) = 0;
  /// All use of it must be done. It may be kept for later allocations until the device is destroyed.
  virtual void free(std::byte* memory) = 0;

  virtual Expected<Event*> make_event() = 0;
  virtual void destroy(Event* event) = 0;
  virtual Status record(Event* event, Line line) = 0;
  /// Work issued in that line from now on runs after the latest recording of the event; at once if there is none.
  virtual Status wait(Line line, Event* event) = 0;
  /// Blocks the host until the event.
  virtual Status await(Event* event) = 0;
  /// Blocks the host until all work of that line is done.
  virtual Status synchronize(Line line) = 0;

  /// In the compute line.
  virtual Status zero(void* at, uint64_t bytes) = 0;
  /// Within the device, or between it and host(), in that line.
  virtual Status copy(Line line, void* to, const void* from, uint64_t bytes) = 0;
  /// Copies from and to any host memory, after the compute line. They return when the copy is done.
  virtual Status read(void* to_host, const void* from, uint64_t bytes) = 0;
  virtual Status write(void* to, const void* from_host, uint64_t bytes) = 0;

  // On arrays of floats, in the compute line. The bits are equal on every device.
  virtual Status step(const StepCall& call) = 0;
  /// to[i] += from[i].
  virtual Status add(uint64_t num_elems, float* to, const float* from) = 0;
  virtual Status scale(uint64_t num_elems, float factor, float* x) = 0;
  /// Adds the square of element i to lanes[i % kNormLanes].
  virtual Status add_squares(uint64_t num_elems, const float* x, double* lanes) = 0;
};

/// CUDA number of the device with a communicator's buffers; -1: host memory. O(1).
RONDO_API int device_of(Communicator& comm);

/// The host: malloc, loops on the calling thread, no streams.
RONDO_API std::shared_ptr<Device> host_device();

/// A CUDA device by CUDA's number. compute_stream: the CUDA stream in which the caller computes (nullptr: the default
/// stream); it must outlive the Device. Communication gets its own stream. Ranks that are threads on one device each
/// need a non-blocking stream, otherwise their kernels wait for each other. Errors: kUnsupported (no driver, or no
/// device kernels in this build), kInvalidArgument (no such device), kSystem.
RONDO_API Expected<std::shared_ptr<Device>> cuda_device(int ordinal, void* compute_stream = nullptr);

}  // namespace rondo::fsdp
