// The formats of floats of 8 and 16 bits, one line for each. The CPU kernels, the CUDA kernels, the conversion of
// NCCL's scales and the data of `rondo perf` read them.
//
// Kernels round to nearest, ties to even, and keep subnormals on both sides. A NaN is stored as the canonical one.
//   fp16, bf16  overflow gives infinity.
//   e4m3        the OCP "fn" variant: no infinity, NaN is 0x7f (or 0xff). Values out of range, infinity included,
//               saturate to +-448, as in CUDA's __nv_fp8_e4m3.
//   e5m2        overflows to infinity as fp16 does (CUDA's __NV_NOSAT), because saturation would hide an overflowed
//               gradient.
#pragma once

#include <bit>
#include <cstdint>

#include "rondo/types.h"

namespace rondo {

/// A binary float of 1 + (w - 1 - mantissa_bits) + mantissa_bits bits with gradual underflow.
struct FloatFormat {
  int mantissa_bits;
  int bias;
  uint32_t max_code;  // the largest code after overflow: infinity, or the largest finite number
  uint32_t nan_code;  // the canonical NaN; every magnitude above max_code is a NaN
  constexpr bool has_infinity() const { return (max_code & ((1u << mantissa_bits) - 1)) == 0; }
};
constexpr FloatFormat float_format(Dtype narrow_float) {
  switch (narrow_float) {
    case Dtype::kFloat16: return {10, 15, 0x7c00, 0x7e00};
    case Dtype::kBfloat16: return {7, 127, 0x7f80, 0x7fc0};
    case Dtype::kFloat8E4m3: return {3, 7, 0x7e, 0x7f};
    case Dtype::kFloat8E5m2: return {2, 15, 0x7c, 0x7f};
    default: return {};
  }
}

/// The value of a code, exact. A NaN becomes quiet. Scalar, not for hot loops.
constexpr float value_of_code(uint32_t code, Dtype narrow_float) {
  const FloatFormat f = float_format(narrow_float);
  const uint32_t sign_bit = 1u << (8 * dtype_bytes(narrow_float) - 1);
  const uint32_t magnitude = code & (sign_bit - 1);
  const uint32_t sign = (code & sign_bit) ? 0x80000000u : 0;
  constexpr uint32_t kInfinity = 0x7f800000, kQuietBit = 0x00400000;
  uint32_t bits = magnitude << (23 - f.mantissa_bits);  // the exponent field still has the narrow bias
  if (magnitude > f.max_code) {
    bits = kInfinity | kQuietBit | (bits & 0x007fffff);
  } else if (f.has_infinity() && magnitude == f.max_code) {
    bits = kInfinity;
  } else if ((magnitude >> f.mantissa_bits) != 0 || f.bias == 127) {
    bits += static_cast<uint32_t>(127 - f.bias) << 23;
  } else {
    // Subnormal: an integer multiple of 2^(1 - bias - mantissa_bits), which is a normal fp32 number.
    const uint32_t ulp = static_cast<uint32_t>(127 + 1 - f.bias - f.mantissa_bits) << 23;
    bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * std::bit_cast<float>(ulp));
  }
  return std::bit_cast<float>(sign | bits);
}
static_assert(value_of_code(0x7e, Dtype::kFloat8E4m3) == 448.0f && value_of_code(0x7b, Dtype::kFloat8E5m2) == 57344.0f);

}  // namespace rondo
