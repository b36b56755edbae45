// Sizes of a communicator's device memory, equal on all its ranks, and the places of a connection's parts in it.
//
// A connection has one FIFO per channel. Its parts are in the memory of the rank that polls them: lines and data of a
// unicast in the reader's staging memory, read counters in the writer's. A multicast is all in the writer's memory,
// which every reader polls. Memory on the other side of a link is only written, except for a multicast's data.
//
// Pure functions and values.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace rondo {

/// Contents of a connection. kRing: lines and a data ring (Simple; between hosts also LL and LL128). kLines: only lines
/// (credits). kWords, kWideLines: slots of the LL and LL128 protocols.
enum class ConnectionForm : uint8_t { kRing, kLines, kWords, kWideLines };
/// Key of a device connection: the same ends may have one connection of each form.
struct DeviceKey {
  ConnectionKey key;
  ConnectionForm form = ConnectionForm::kRing;
};

/// Messages in flight in a connection of the stream engine.
inline constexpr uint32_t kStreamSlots = 8;

struct DeviceLayout {
  static constexpr uint32_t kMostChannels = 64;
  uint32_t max_channels = 16;
  uint32_t message_bytes = 128 * 1024;  // longest message of a ring
  static constexpr uint32_t kLines = 16, kSlots = 8;
  static constexpr uint32_t kSlotBytes = 32 * 1024;  // for words and wide lines, with flags

  /// Payload of a slot: half of it with 4-byte flags, or 120 of every 128 bytes with 8-byte flags.
  static constexpr uint32_t slot_payload(ConnectionForm form) {
    return form == ConnectionForm::kWords ? kSlotBytes / 2 : kSlotBytes / 128 * 120;
  }
  static constexpr bool has_lines(ConnectionForm form) {
    return form == ConnectionForm::kRing || form == ConnectionForm::kLines;
  }
  static constexpr uint32_t num_lines(ConnectionForm form) { return has_lines(form) ? kLines : kSlots; }
  uint32_t data_bytes(ConnectionForm form) const {
    switch (form) {
      case ConnectionForm::kRing: return message_bytes * (kRingMessages + 1);
      case ConnectionForm::kLines: return 0;
      default: return kSlots * kSlotBytes;
    }
  }
  /// For one channel, without counters.
  static constexpr uint64_t lines_bytes(ConnectionForm form) {
    return has_lines(form) ? kLines * sizeof(HeaderLine) : 0;
  }
  /// For all channels, data first. A multiple of 4 KiB.
  uint64_t inbox_bytes(ConnectionForm form) const {
    return (max_channels * (data_bytes(form) + lines_bytes(form)) + 4095) / 4096 * 4096;
  }
  uint64_t counters_bytes(uint32_t readers) const { return uint64_t{max_channels} * readers * sizeof(ReadCounter); }

  /// The FIFO of one channel. inbox, counters: memory of all channels. readers: counters per channel.
  FifoView view(ConnectionForm form, std::byte* inbox, std::byte* counters, uint32_t readers, uint32_t channel) const {
    FifoView v;
    v.num_lines = num_lines(form);
    v.data_bytes = data_bytes(form);
    v.data = v.data_bytes != 0 ? inbox + uint64_t{channel} * v.data_bytes : nullptr;
    if (lines_bytes(form) != 0)
      v.lines =
          reinterpret_cast<HeaderLine*>(inbox + uint64_t{max_channels} * v.data_bytes + channel * lines_bytes(form));
    v.counters = reinterpret_cast<ReadCounter*>(counters) + uint64_t{channel} * readers;
    return v;
  }
};
static_assert(kRingMessages < DeviceLayout::kLines && DeviceLayout::kLines <= kMaxDataLines);

}  // namespace rondo
