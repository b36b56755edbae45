// TickScale: converts ticks of the time stamp counter to nanoseconds of CLOCK_MONOTONIC, linearly through two pairs.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trace/clock.h"

namespace rondo {

class TickScale {
 public:
  TickScale() = default;
  TickScale(const ClockPair& first, const ClockPair& last)
      : first_(first), ns_per_tick_(rondo::ns_per_tick(first, last)) {}
  double ns_per_tick() const { return ns_per_tick_; }
  /// Returns the nanoseconds since the first pair, negative for earlier ticks. Keeps fractions of a nanosecond. The
  /// limit is 2^61 ns, which is 73 years.
  double since_first_ns(uint64_t at_ticks) const {
    constexpr double kMost_ns = 0x1p61;
    const double ns = static_cast<double>(static_cast<int64_t>(at_ticks - first_.ticks)) * ns_per_tick_;
    return std::clamp(ns, -kMost_ns, kMost_ns);
  }
  int64_t monotonic_ns(uint64_t at_ticks) const {
    return first_.monotonic_ns + static_cast<int64_t>(since_first_ns(at_ticks));
  }
  double duration_ns(uint64_t num_ticks) const { return static_cast<double>(num_ticks) * ns_per_tick_; }

 private:
  ClockPair first_;
  double ns_per_tick_ = 1;
};

}  // namespace rondo
