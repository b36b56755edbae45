// Adds the kernels' DeviceRecords to a rank's trace. A launch of traced calls has a LaunchTrace in device memory, which
// is fetched after the launch. DeviceTracing converts its records to StepRecords, with times on the host's clock.
//
// A captured launch is not traced: its replays would all write to one place without the host's knowledge.
// Thread safety: LaunchTrace as stated; DeviceTracing belongs to the holder of the engine's watch lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/engine/device_clock.h"
#include "device/engine/lower.h"
#include "device/p2p/cuda_transport.h"
#include "trace/step_trace.h"

namespace rondo {

/// The records of one launch, which may contain calls of several ranks.
class LaunchTrace {
 public:
  static constexpr uint64_t kMostRecords = 1 << 18;  // 16 MiB; after that the oldest are lost
  /// Errors: the driver's. The device's context must be current, here and below.
  static Expected<std::unique_ptr<LaunchTrace>> make(uint64_t num_records);
  uint64_t capacity() const { return capacity_; }
  /// Clears it, in stream order.
  Status begin(cuda::Stream stream);
  DeviceTrace on_device() const;
  /// The kernel's records. Fetched once, by the first caller. From any thread, after the launch has ended.
  Expected<const std::vector<DeviceRecord>*> records(cuda::Stream stream);
  uint64_t num_lost() const { return num_lost_; }

 private:
  cuda::DeviceMemory memory_;  // the count in its own line, then the records
  uint64_t capacity_ = 0;
  std::mutex mutex_;
  bool fetched_ = false;
  uint64_t num_lost_ = 0;
  std::vector<DeviceRecord> records_;
};

class DeviceTracing {
 public:
  explicit DeviceTracing(const CudaTransport& transport) : transport_(transport) {}
  /// Reads the device's clock. Call it before start(), while tracing is off and without the watch lock, because it may
  /// take a second. Errors: as DeviceClock.
  Status prepare(KernelLoader& kernels);
  /// `trace` belongs to this object until stop().
  void start(StepTrace* trace) { trace_ = trace; }
  void stop() { trace_ = nullptr; }
  bool on() const { return trace_ != nullptr; }
  /// Memory for the records of a launch. `num_records`: of its traced calls.
  Expected<std::shared_ptr<LaunchTrace>> room_for(uint64_t num_records);
  /// Adds the records of call number `call` of an ended launch, in order of time.
  Status add(LaunchTrace& launch, uint32_t call, uint64_t sequence, const LoweredProgram& main,
             const LoweredProgram& fallback, KernelLoader& kernels);

 private:
  const CudaTransport& transport_;
  StepTrace* trace_ = nullptr;
  DeviceClock clock_;
  cuda::OwnedStream stream_;
  std::vector<std::shared_ptr<LaunchTrace>> launches_;  // free if no other owner holds them
};

/// Maximum number of records of a call that runs this program. O(lanes).
uint64_t most_records(const LoweredProgram& lowered);

}  // namespace rondo
