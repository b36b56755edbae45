// What kernels write down of their instructions (DeviceRecord), and how it becomes part of a rank's trace: a launch of
// traced calls has a LaunchTrace in device memory, which is fetched when the launch has ended; DeviceTracing turns its
// records into StepRecords, with the device's times on the host's clock.
//
// A captured launch is not traced: its replays would all write to one place, unseen by the host.
//
// Thread safety: LaunchTrace as stated; DeviceTracing belongs to whoever holds the engine's watch lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/engine/device_clock.h"
#include "device/engine/device_program.h"
#include "plan/program.h"
#include "trace/step_trace.h"

namespace rondo {

/// The records of one launch, which may hold calls of several ranks.
class LaunchTrace {
 public:
  static constexpr uint64_t kMostRecords = 1 << 18;  // 16 MiB; beyond that the oldest are lost
  /// Errors: those of the driver. The device's context is current, here and below.
  static Expected<std::unique_ptr<LaunchTrace>> make(uint64_t num_records);
  uint64_t capacity() const { return capacity_; }
  /// Clears it, in the order of the stream.
  Status begin(cuda::Stream stream);
  DeviceTrace on_device() const;
  /// What the kernel has written; fetched once, by whoever asks first. From any thread, after the launch has ended.
  Expected<const std::vector<DeviceRecord>*> records(cuda::Stream stream);
  uint64_t num_lost() const { return num_lost_; }

 private:
  cuda::DeviceMemory memory_;  // the count in a line of its own, then the records
  uint64_t capacity_ = 0;
  std::mutex mutex_;
  bool fetched_ = false;
  uint64_t num_lost_ = 0;
  std::vector<DeviceRecord> records_;
};

/// What the instructions of a call are of, as the host has it and as it was lowered. fallback may be null.
struct TracedPrograms {
  const Program* program;
  const DeviceProgram* header;
  const Program* fallback;
  const DeviceProgram* fallback_header;
};

class DeviceTracing {
 public:
  /// Before start(), while it is off; may take a second, so without the watch lock. Reads the device's clock. Errors:
  /// those of DeviceClock.
  Status prepare(KernelLoader& kernels);
  /// `trace` belongs to this until stop().
  void start(StepTrace* trace) { trace_ = trace; }
  void stop() { trace_ = nullptr; }
  bool on() const { return trace_ != nullptr; }
  /// Room for the records of a launch; `num_records` of calls that this is asked to trace.
  Expected<std::shared_ptr<LaunchTrace>> room_for(uint64_t num_records);
  /// The records of call number `call` of a launch that has ended, in the order of time.
  Status add(LaunchTrace& launch, uint32_t call, uint64_t sequence, const TracedPrograms& programs,
             KernelLoader& kernels);

 private:
  StepTrace* trace_ = nullptr;
  DeviceClock clock_;
  cuda::OwnedStream stream_;
  std::vector<std::shared_ptr<LaunchTrace>> launches_;  // those that nobody else holds are free
};

/// How many records a call may make. O(lanes).
uint64_t most_records(const DeviceProgram& header);

}  // namespace rondo
