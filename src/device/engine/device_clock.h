// DeviceClock: converts a device's clock to host ticks.
// Thread safety: one thread at a time; the device's context is current.
#pragma once

#include <cstdint>

#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "trace/clock.h"

namespace rondo {

class DeviceClock {
 public:
  DeviceClock() = default;
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;
  /// Reads the device's time. Errors: the driver's; kTimeout if it does not answer within a second, for example because
  /// kernels that wait occupy the whole device.
  Status read(KernelLoader& kernels) { return read(kernels, kFirstDeadlineNs); }
  /// The same, unless the last answer is recent. Keeps the old values if no answer comes soon.
  Status refresh(KernelLoader& kernels);
  uint64_t ticks(uint64_t device_ns) const {
    return at_ticks_ + static_cast<uint64_t>(static_cast<int64_t>(
                           static_cast<double>(static_cast<int64_t>(device_ns - at_ns_)) / ns_per_tick_));
  }
  uint64_t duration_ticks(uint64_t ns) const { return static_cast<uint64_t>(static_cast<double>(ns) / ns_per_tick_); }

 private:
  static constexpr uint64_t kFirstDeadlineNs = 1'000'000'000, kDeadlineNs = 2'000'000, kYoungNs = 1'000'000'000;
  Status make();
  Status read(KernelLoader& kernels, uint64_t deadline_ns);

  cuda::OwnedStream stream_;
  cuda::PinnedMemory exchange_;
  bool launched_ = false;  // a kernel may still read exchange_
  bool known_ = false;
  uint64_t at_ticks_ = 0, at_ns_ = 0, read_at_ns_ = 0;
  double ns_per_tick_ = 1;
  ClockPair first_;
};

}  // namespace rondo
