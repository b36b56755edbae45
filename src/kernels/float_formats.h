// Bit-exact conversions of the narrow float formats fp16, bf16, fp8 e4m3 and fp8 e5m2 to and from fp32. The reference
// for kernels, tests and the checker; scalar and constexpr, not for hot loops.
//
// From fp32: round to nearest, ties to even; subnormals are kept on both sides.
//   fp16, bf16  overflow gives infinity; a NaN keeps its sign and the top of its payload and becomes quiet.
//   e4m3        the OCP "fn" variant: no infinity, NaN is 0x7f (or 0xff). Values out of range, infinity included,
//               saturate to +-448, as in CUDA's __nv_fp8_e4m3; NaN becomes 0x7f.
//   e5m2        overflows to infinity as fp16 does (CUDA's __NV_NOSAT), because saturation would hide an overflowed
//               gradient. NaN becomes 0x7f, as in CUDA.
// To fp32: exact; a NaN becomes quiet.
#pragma once

#include <bit>
#include <cstdint>

namespace rondo {

/// A binary float of 1 + (w - 1 - mantissa_bits) + mantissa_bits bits with gradual underflow.
struct FloatFormat {
  int mantissa_bits;
  int bias;
  uint32_t max_code;  // the largest code after overflow: infinity, or the largest finite number
  uint32_t nan_code;  // the canonical NaN; every magnitude above max_code is a NaN
  uint32_t sign_bit;
};
inline constexpr FloatFormat kFormatFp16{10, 15, 0x7c00, 0x7e00, 0x8000};
inline constexpr FloatFormat kFormatBf16{7, 127, 0x7f80, 0x7fc0, 0x8000};
inline constexpr FloatFormat kFormatE4m3{3, 7, 0x7e, 0x7f, 0x80};
inline constexpr FloatFormat kFormatE5m2{2, 15, 0x7c, 0x7f, 0x80};

namespace float_formats_internal {

constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kQuietBit = 0x00400000;

constexpr float widen(uint32_t code, const FloatFormat& f) {
  const uint32_t magnitude = code & (f.sign_bit - 1);
  const uint32_t sign = (code & f.sign_bit) ? 0x80000000u : 0;
  const int shift = 23 - f.mantissa_bits;
  uint32_t bits = magnitude << shift;  // the exponent field still has the narrow bias
  if (magnitude > f.max_code) {
    bits = kInfinity | kQuietBit | (bits & 0x007fffff);
  } else if (f.max_code == ((magnitude >> f.mantissa_bits) << f.mantissa_bits)) {
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

constexpr uint32_t narrow(float value, const FloatFormat& f, bool keep_nan_payload) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t sign = (bits >> 31) ? f.sign_bit : 0;
  const int shift = 23 - f.mantissa_bits;
  if (magnitude > kInfinity) {
    if (!keep_nan_payload) return f.nan_code;
    return sign | f.nan_code | ((magnitude & 0x007fffff) >> shift);
  }
  const uint32_t rebias = static_cast<uint32_t>(127 - f.bias) << 23;
  uint64_t code;
  if (f.bias == 127 || magnitude >= rebias + 0x00800000) {
    const uint32_t odd = (magnitude >> shift) & 1;
    code = (uint64_t{magnitude} - rebias + ((1u << (shift - 1)) - 1) + odd) >> shift;
  } else {
    // Subnormal in the narrow format: shift the significand to its place and round by hand.
    const int exponent = static_cast<int>(magnitude >> 23);
    const uint64_t significand = (magnitude & 0x007fffff) | (exponent != 0 ? 0x00800000u : 0);
    const int right = shift + (128 - f.bias) - (exponent != 0 ? exponent : 1);
    if (right > 40) return sign;
    const uint64_t half = uint64_t{1} << (right - 1);
    const uint64_t odd = (significand >> right) & 1;
    code = (significand + half - 1 + odd) >> right;
  }
  return sign | (code > f.max_code ? f.max_code : static_cast<uint32_t>(code));
}

}  // namespace float_formats_internal

constexpr float fp16_to_float(uint16_t code) { return float_formats_internal::widen(code, kFormatFp16); }
constexpr float bf16_to_float(uint16_t code) { return float_formats_internal::widen(code, kFormatBf16); }
constexpr float e4m3_to_float(uint8_t code) { return float_formats_internal::widen(code, kFormatE4m3); }
constexpr float e5m2_to_float(uint8_t code) { return float_formats_internal::widen(code, kFormatE5m2); }

constexpr uint16_t float_to_fp16(float value) {
  return static_cast<uint16_t>(float_formats_internal::narrow(value, kFormatFp16, true));
}
constexpr uint16_t float_to_bf16(float value) {
  return static_cast<uint16_t>(float_formats_internal::narrow(value, kFormatBf16, true));
}
constexpr uint8_t float_to_e4m3(float value) {
  return static_cast<uint8_t>(float_formats_internal::narrow(value, kFormatE4m3, false));
}
constexpr uint8_t float_to_e5m2(float value) {
  return static_cast<uint8_t>(float_formats_internal::narrow(value, kFormatE5m2, false));
}

static_assert(float_to_fp16(65520.0f) == 0x7c00 && float_to_fp16(65519.0f) == 0x7bff);
static_assert(float_to_e4m3(1e9f) == 0x7e && float_to_e5m2(1e9f) == 0x7c && e4m3_to_float(0x7e) == 448.0f);

}  // namespace rondo
