// The tables of a launch, as LaunchArgs describes them: units, calls, then each call's fallback and the parts of its
// variable counts. They are written for each launch, into its arguments or into memory that lives as long.
//
// Thread safety: values.
#pragma once

#include <cstring>
#include <span>
#include <utility>

#include "base/round_up.h"
#include "device/engine/device_program.h"
#include "plan/call.h"

namespace rondo {

/// A call on its way into a launch. The tables get its offsets.
struct LaunchCall : DeviceCall {
  DeviceFallback other{};                    // without a program: it has no fallback
  const VariableCounts* variable = nullptr;  // nullptr: the same count everywhere
};

struct LaunchTables {
  std::span<const DeviceUnit> units;
  std::span<const LaunchCall> calls;

  /// Writes the tables, aligned to 16 bytes. nullptr: nothing. Returns their length in bytes.
  uint64_t write(std::byte* to) const {
    const uint64_t first_call = LaunchArgs::calls_offset(units.size());
    uint64_t end = first_call + calls.size() * sizeof(DeviceCall);
    const auto put = [to](uint64_t at, const void* from, uint64_t bytes) {
      if (to != nullptr && bytes != 0) std::memcpy(to + at, from, bytes);
    };
    const auto put_parts = [&](const PartExtents& parts) {
      const uint64_t at = std::exchange(end, end + parts.counts.size() * sizeof(Extent));
      for (size_t c = 0; c < parts.counts.size(); ++c) {
        const Extent part = parts.part(c);
        put(at + c * sizeof part, &part, sizeof part);
      }
      return static_cast<uint32_t>(at);
    };
    put(0, units.data(), units.size_bytes());
    for (size_t i = 0; i < calls.size(); ++i) {
      DeviceCall call = calls[i];
      if (calls[i].other.program != nullptr) {
        call.fallback = static_cast<uint32_t>(end);
        put(end, &calls[i].other, sizeof(DeviceFallback));
        end = round_up(end + sizeof(DeviceFallback), 16);
      }
      if (const VariableCounts* v = calls[i].variable; v != nullptr) {
        call.parts[0] = put_parts(v->in);
        call.parts[1] = put_parts(v->out);
      }
      put(first_call + i * sizeof call, &call, sizeof call);
    }
    return end;
  }
};

}  // namespace rondo
