// Device: what an Engine needs of the place where its buffers lie. The host's is the default and does all at once, on
// the caller's thread; that of a CUDA device is told what to do in streams, and does it when its turn comes.
//
// Work goes along two lines, each in the order of its issue. Events order one line after the other:
//
//   compute         |forward 1|forward 2|...          the caller's stream, and what the engine changes in between
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
  /// A point in a line, as it was recorded last.
  struct Event;

  virtual ~Device() = default;  // here: the library has no RTTI, and users may derive
  /// Of communicators whose buffers lie here.
  virtual rondo::Memory memory() const = 0;
  /// CUDA's number of the device; -1: the host.
  virtual int ordinal() const = 0;
  /// Host memory that this device copies from and to without the host's help; the host itself is its own.
  virtual Device& host() = 0;
  /// CallOptions::stream of calls in that line; nullptr on the host.
  virtual void* stream(Line line) const = 0;

  /// Zeros, aligned to 64 bytes. Errors: kSystem, kExhausted.
  virtual Expected<std::byte*> allocate(uint64_t bytes) = 0;
  /// What uses it is done. It may be kept for later allocations until the device is destroyed.
  virtual void free(std::byte* memory) = 0;

  virtual Expected<Event*> make_event() = 0;
  virtual void destroy(Event* event) = 0;
  virtual Status record(Event* event, Line line) = 0;
  /// What is issued in that line from now on comes after the event as it was recorded last; at once if it never was.
  virtual Status wait(Line line, Event* event) = 0;
  /// The host waits for it.
  virtual Status await(Event* event) = 0;
  /// The host waits until all of that line is done.
  virtual Status synchronize(Line line) = 0;

  /// In the compute line.
  virtual Status zero(void* at, uint64_t bytes) = 0;
  /// Within the device, or between it and host(); in that line.
  virtual Status copy(Line line, void* to, const void* from, uint64_t bytes) = 0;
  /// From and to any host memory, after the compute line; they return when it is done.
  virtual Status read(void* to_host, const void* from, uint64_t bytes) = 0;
  virtual Status write(void* to, const void* from_host, uint64_t bytes) = 0;

  // Arrays of floats, in the compute line; the bits are the same on every device.
  virtual Status step(const StepCall& call) = 0;
  /// to[i] += from[i].
  virtual Status add(uint64_t num_elems, float* to, const float* from) = 0;
  virtual Status scale(uint64_t num_elems, float factor, float* x) = 0;
  /// Adds the square of element i to lanes[i % kNormLanes].
  virtual Status add_squares(uint64_t num_elems, const float* x, double* lanes) = 0;
};

/// CUDA's number of the device on which a communicator's buffers lie; -1: they are host memory. O(1).
RONDO_API int device_of(Communicator& comm);

/// The host: memory of malloc, loops on the calling thread, no streams.
RONDO_API std::shared_ptr<Device> host_device();

/// A CUDA device by CUDA's number. compute_stream: the CUDA stream in which the caller computes (nullptr: the default
/// stream), which must outlive it; communication gets a stream of its own. Ranks that are threads on one device each
/// need a stream that was made non-blocking: others wait for each other's kernels. Errors: kUnsupported (no driver, or
/// no kernels for devices in this build), kInvalidArgument (no such device), kSystem.
RONDO_API Expected<std::shared_ptr<Device>> cuda_device(int ordinal, void* compute_stream = nullptr);

}  // namespace rondo::fsdp
