// LL: short messages on a device, in lines of 16 bytes with their own flags.
//
//     line i of a slot     | data 8i .. 8i+3 | flag | data 8i+4 .. 8i+7 | flag |     two atomic words
//
//     slot s mod K         ceil(bytes / 8) lines of step s; each thread writes, or waits for, lines of its own
//     space                the readers' counters, as in fifo.h
//
// Each word is one 64-bit access. Therefore a reader that finds the flag in a word has its data. It needs no fence and
// no second read. Half of the bytes are flags. flag(s) = (fingerprint mod 255) + 1 (8 bits) | (s + 1) mod 2^24 (24
// bits). No flag is 0, so a line that was never written does not look like a message. If a line has the right step and
// another fingerprint, the ranks disagree. 255 divides kFingerprints. Therefore equal calls have different flags if
// their numbers differ by less than 255.
//
// The step wraps after 2^24 messages. A line that only long messages use could then still contain an equal flag.
// Therefore the writer fills whole slots (ll_fills) in the K steps from every multiple of 2^23 on. No line of a slot is
// then older than 2^23 steps.
//
// For host and device. `Mem` defines the accesses (memory.h). Thread safety: one thread at a time writes a line.
// Learned from: NCCL's LL protocol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/fifo.h"
#include "protocol/memory.h"

namespace rondo {

inline constexpr uint32_t kLlLineBytes = 16, kLlDataBytes = 8;
inline constexpr uint32_t kLlStepMask = (1u << 24) - 1;
inline constexpr uint64_t kLlFillPeriod = uint64_t{1} << 23;

constexpr uint64_t ll_lines(uint64_t bytes) { return (bytes + kLlDataBytes - 1) / kLlDataBytes; }

constexpr uint32_t make_ll_flag(uint32_t fingerprint, uint64_t step) {
  static_assert(kFingerprints % 255 == 0);
  return (1 + fingerprint % 255) << 24 | (static_cast<uint32_t>(step + 1) & kLlStepMask);
}
/// Returns true if the message of this step must fill its slot to the end. Steps before the first period write into the
/// zeroed memory of a new connection.
constexpr bool ll_fills(uint64_t step, uint32_t num_slots) {
  return step >= kLlFillPeriod && (step & (kLlFillPeriod - 1)) < num_slots;
}

/// Returns the offset of a step's slot. num_slots is a power of two.
constexpr uint64_t slot_offset(uint64_t step, uint32_t num_slots, uint32_t slot_bytes) {
  return (step & (num_slots - 1)) * slot_bytes;
}

template <class Mem>
struct Ll {
  RONDO_HOST_DEVICE static void store(std::byte* line, uint64_t data, uint32_t flag) {
    const uint64_t high = static_cast<uint64_t>(flag) << 32;
    Mem::store_pair(line, {(data & 0xffffffff) | high, data >> 32 | high});
  }
  /// Loads kN lines, `stride` bytes apart, without waiting for any. Then call arrived().
  template <uint32_t kN>
  RONDO_HOST_DEVICE static void load(const std::byte* line, uint32_t stride, WordPair (&v)[kN]) {
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) v[u] = Mem::load_pair(line + u * stride);
  }
  /// Returns kReady if all loaded lines are of this message. Loads those again that are not.
  template <uint32_t kN>
  RONDO_HOST_DEVICE static Arrival arrived(const std::byte* line, uint32_t stride, uint32_t flag, WordPair (&v)[kN]) {
    bool all = true;
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) all = all && first(v[u]) == flag && second(v[u]) == flag;
    if (all) return Arrival::kReady;
    bool other = false;
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      other = other || other_fingerprint(first(v[u]), flag) || other_fingerprint(second(v[u]), flag);
      if (first(v[u]) != flag || second(v[u]) != flag) v[u] = Mem::load_pair(line + u * stride);
    }
    return other ? Arrival::kMismatch : Arrival::kNotYet;
  }
  RONDO_HOST_DEVICE static uint64_t data_of(const WordPair& v) { return (v.lo & 0xffffffff) | v.hi << 32; }

 private:
  RONDO_HOST_DEVICE static uint32_t first(const WordPair& v) { return static_cast<uint32_t>(v.lo >> 32); }
  RONDO_HOST_DEVICE static uint32_t second(const WordPair& v) { return static_cast<uint32_t>(v.hi >> 32); }
  RONDO_HOST_DEVICE static bool other_fingerprint(uint32_t found, uint32_t flag) {
    return found != flag && found >> 24 != 0 && (found & kLlStepMask) == (flag & kLlStepMask);
  }
};

}  // namespace rondo
