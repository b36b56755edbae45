// What time it is on a device: a kernel of one thread that tells the host its clock whenever the host asks, so that the
// times in DeviceRecords can be placed among those of the host. The host brackets each answer with its own clock, and
// keeps the tightest of several (device_clock.h).
//
// Host and device. Env as in interpreter.h.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace rondo {

/// In host memory that the device sees; zero at first.
struct alignas(64) ClockExchange {
  static constexpr uint64_t kEnough = UINT64_MAX;
  uint64_t asked;     // by the host: 1, 2, ..., at last kEnough
  uint64_t now_ns;    // the device's answer
  uint64_t answered;  // to which question, stored with release behind it
  uint64_t given_up;  // the kernel waited for a question for kMostNs
};

struct ClockArgs {
  ClockExchange* exchange;
};

/// One thread.
template <class Env>
RONDO_HOST_DEVICE_INLINE void tell_clock(const ClockArgs& args) {
  using Mem = typename Env::Mem;
  constexpr uint64_t kMostNs = 100'000'000;  // of silence: whoever asked is gone
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
      Mem::store_release(&x.given_up, 1);
      return;
    }
    Env::relax(1);
  }
}

}  // namespace rondo
