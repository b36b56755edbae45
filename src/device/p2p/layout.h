// Sizes of a communicator's device memory, equal on all its ranks, and the places of a connection's parts in it.
//
// A connection has one FIFO for each channel. Its parts lie where they are waited for: lines and data of a unicast in
// the reader's staging memory, the read counters in the writer's; of a multicast everything in the writer's, where each
// reader looks for itself. What lies on the other side of a link is only ever written, except a multicast's data.
//
// Pure functions and values.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace rondo {

/// What a connection carries messages in. kRing: lines and a ring of data (Simple). kLines: lines alone (credits).
/// kWords, kWideLines: slots of the LL and LL128 protocols.
enum class ConnectionForm : uint8_t { kRing, kLines, kWords, kWideLines };
/// A device's connection: between the same ends there may be one of each form.
struct DeviceKey {
  ConnectionKey key;
  ConnectionForm form = ConnectionForm::kRing;
};

struct DeviceLayout {
  uint32_t max_channels = 16;
  uint32_t message_bytes = 128 * 1024;  // longest message of a ring
  static constexpr uint32_t kRingLines = 16, kCreditLines = 16, kSlots = 8;
  static constexpr uint32_t kSlotBytes = 32 * 1024;  // of words and wide lines, flags included

  /// The payload of a slot: half of it beside 4-byte flags, 120 of 128 bytes beside 8-byte flags.
  static constexpr uint32_t slot_payload(ConnectionForm form) {
    return form == ConnectionForm::kWords ? kSlotBytes / 2 : kSlotBytes / 128 * 120;
  }
  uint32_t num_lines(ConnectionForm form) const {
    switch (form) {
      case ConnectionForm::kRing: return kRingLines;
      case ConnectionForm::kLines: return kCreditLines;
      default: return kSlots;
    }
  }
  uint32_t data_bytes(ConnectionForm form) const {
    switch (form) {
      case ConnectionForm::kRing: return message_bytes * (kRingMessages + 1);
      case ConnectionForm::kLines: return 0;
      default: return kSlots * kSlotBytes;
    }
  }
  /// Of one channel, without counters.
  uint64_t lines_bytes(ConnectionForm form) const {
    const bool lines = form == ConnectionForm::kRing || form == ConnectionForm::kLines;
    return lines ? uint64_t{num_lines(form)} * sizeof(HeaderLine) : 0;
  }
  /// Of all channels, data first: multiples of 4 KiB.
  uint64_t inbox_bytes(ConnectionForm form) const {
    return (max_channels * (data_bytes(form) + lines_bytes(form)) + 4095) / 4096 * 4096;
  }
  uint64_t counters_bytes(uint32_t readers) const { return uint64_t{max_channels} * readers * sizeof(ReadCounter); }

  /// The FIFO of one channel. inbox, counters: where all channels' stand. readers: counters of a channel.
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
static_assert(kRingMessages < DeviceLayout::kRingLines && DeviceLayout::kRingLines <= kMaxDataLines);

}  // namespace rondo
