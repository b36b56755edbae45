// Reads a device's clock: a kernel of one thread answers the host's requests, so that times in DeviceRecords can be
// converted to host time. The host reads its own clock before and after each answer and keeps the tightest of several
// (device_clock.h). Host and device. Env as in interpreter.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace rondo {

/// In host memory that the device can access; zero at first.
struct alignas(64) ClockExchange {
  static constexpr uint64_t kEnough = UINT64_MAX;
  uint64_t asked;     // by the host: 1, 2, ..., at last kEnough
  uint64_t now_ns;    // the device's answer
  uint64_t answered;  // number of the answered request; stored after it with release
};

struct ClockArgs {
  ClockExchange* exchange;
};

/// Runs in one thread.
template <class Env>
RONDO_HOST_DEVICE_INLINE void tell_clock(const ClockArgs& args) {
  using Mem = typename Env::Mem;
  constexpr uint64_t kMostNs = 100'000'000;  // without a request: the host has gone
  ClockExchange& x = *args.exchange;
  uint64_t since_ns = Env::now_ns();
  for (uint64_t next = 1;;) {
    const uint64_t asked = Mem::load_acquire(&x.asked);
    const uint64_t now_ns = Env::now_ns();
    if (asked == ClockExchange::kEnough) return;
    if (asked == next) {
      Mem::store_relaxed(&x.now_ns, now_ns);
      Mem::store_release(&x.answered, next++);
      since_ns = now_ns;
    } else if (now_ns - since_ns > kMostNs) {
      return;
    }
    Env::relax(1);
  }
}

}  // namespace rondo
