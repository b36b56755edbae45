// float to bfloat16 (its upper 16 bits) and back.
//
// Thread safety: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace plain {

inline float widened(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

/// Rounds to nearest, ties to even. value: not NaN.
inline uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace plain
