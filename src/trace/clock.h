// Ticks of the processor's time stamp counter, and their conversion to clock times.
//
// Records contain raw ticks, which cost one instruction. A pair (ticks, clocks) at the start of a trace and one at its
// end convert them to nanoseconds. Processors with an invariant counter share it among all processes of a host; ticks
// of different processes are then comparable.
//
// Thread safety: pure functions and values.
#pragma once

#include <time.h>

#include <cstdint>

#include "trace/operation_record.h"

namespace rondo {

/// One moment on three clocks.
struct ClockPair {
  uint64_t ticks = 0;
  int64_t monotonic_ns = 0;  // CLOCK_MONOTONIC: since the host's start
  int64_t realtime_ns = 0;   // CLOCK_REALTIME: since 1970
  friend constexpr bool operator==(const ClockPair&, const ClockPair&) = default;
};

/// Reads the clocks between two readings of the ticks, several times. Returns the pair whose readings were nearest. It
/// is accurate to about 20 ns.
inline ClockPair read_clock_pair() {
  ClockPair best;
  uint64_t tightest = UINT64_MAX;
  for (int i = 0; i < 16; ++i) {
    const uint64_t before = ticks();
    const int64_t monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    const uint64_t after = ticks();
    if (after - before >= tightest) continue;
    tightest = after - before;
    best = {before + (after - before) / 2, monotonic_ns, clock_ns(CLOCK_REALTIME)};
  }
  return best;
}

/// Returns the length of a tick between two pairs; 1 if they are not in order.
inline double ns_per_tick(const ClockPair& first, const ClockPair& last) {
  if (last.ticks <= first.ticks || last.monotonic_ns <= first.monotonic_ns) return 1;
  return static_cast<double>(last.monotonic_ns - first.monotonic_ns) / static_cast<double>(last.ticks - first.ticks);
}

}  // namespace rondo
