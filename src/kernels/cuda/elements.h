// Element types in a kernel: conversions between the bits of an element and its accumulator. They are bit-identical to
// the host kernels (src/kernels/inner/formats.h): round to nearest even, subnormals kept, NaN stored as the canonical
// one.
//
// fp16 and bf16 use the conversion instructions of sm_80 and later, with a corrected NaN. fp8 always uses arithmetic on
// the bits, because devices differ in their fp8 support and saturate e5m2.
//
// Host and device. Compile without contraction (-fmad=false, -ffp-contract=off): a fused multiply-add rounds
// differently.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/words.h"
#include "kernels/float_formats.h"
#include "rondo/types.h"

namespace rondo::device_kernels {

RONDO_HOST_DEVICE_INLINE uint32_t bits_of(float v) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(v);
#else
  return std::bit_cast<uint32_t>(v);
#endif
}
RONDO_HOST_DEVICE_INLINE float float_of(uint32_t v) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(v);
#else
  return std::bit_cast<float>(v);
#endif
}
RONDO_HOST_DEVICE_INLINE uint64_t bits_of(double v) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(v));
#else
  return std::bit_cast<uint64_t>(v);
#endif
}
RONDO_HOST_DEVICE_INLINE double double_of(uint64_t v) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double(static_cast<long long>(v));
#else
  return std::bit_cast<double>(v);
#endif
}

/// Integers: the type is its own accumulator.
template <class T>
struct IntElement {
  static constexpr int kBytes = sizeof(T);
  static constexpr bool kFloat = false;
  using Acc = T;
  static RONDO_HOST_DEVICE_INLINE Acc widen(Unsigned<kBytes> code) { return static_cast<T>(code); }
  static RONDO_HOST_DEVICE_INLINE Unsigned<kBytes> narrow(Acc a) { return static_cast<Unsigned<kBytes>>(a); }
};

struct Fp32Element {
  static constexpr int kBytes = 4;
  static constexpr bool kFloat = true;
  using Acc = float;
  static RONDO_HOST_DEVICE_INLINE float widen(uint32_t code) { return float_of(code); }
  static RONDO_HOST_DEVICE_INLINE uint32_t narrow(float a) { return a == a ? bits_of(a) : 0x7fc00000u; }
};
struct Fp64Element {
  static constexpr int kBytes = 8;
  static constexpr bool kFloat = true;
  using Acc = double;
  static RONDO_HOST_DEVICE_INLINE double widen(uint64_t code) { return double_of(code); }
  static RONDO_HOST_DEVICE_INLINE uint64_t narrow(double a) { return a == a ? bits_of(a) : 0x7ff8000000000000u; }
};
struct Bf16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kFloat = true;
  using Acc = float;
  static RONDO_HOST_DEVICE_INLINE float widen(uint16_t code) { return float_of(static_cast<uint32_t>(code) << 16); }
  static RONDO_HOST_DEVICE_INLINE uint16_t narrow(float a) {
#if defined(__CUDA_ARCH__)
    uint16_t code;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(a));
    return a == a ? code : static_cast<uint16_t>(0x7fc0);
#else
    const uint32_t bits = bits_of(a);
    return a == a ? static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : static_cast<uint16_t>(0x7fc0);
#endif
  }
};

/// fp16, e4m3 and e5m2 by arithmetic on the bits, as NarrowFloat of the host kernels.
template <Dtype kDtype>
struct NarrowElement {
  static constexpr FloatFormat kFormat = float_format(kDtype);
  static constexpr uint32_t kMaxCode = kFormat.max_code;
  static constexpr uint32_t kNanCode = kFormat.nan_code;
  static constexpr int kBytes = static_cast<int>(dtype_bytes(kDtype));
  static constexpr int kBits = 8 * kBytes;
  static constexpr bool kFloat = true;
  using Acc = float;
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  static constexpr uint32_t kSign = 1u << (kBits - 1);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kFormat.bias) << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  // A power of two whose last fp32 place is the narrow format's smallest number: adding it rounds to that place.
  static constexpr uint32_t kRounder = static_cast<uint32_t>(127 + 1 - kFormat.bias - kFormat.mantissa_bits + 23) << 23;

  static RONDO_HOST_DEVICE_INLINE float widen(Unsigned<kBytes> code) {
    const uint32_t sign = static_cast<uint32_t>(code & kSign) << (32 - kBits);
    const uint32_t magnitude = code & (kSign - 1);
    const uint32_t shifted = magnitude << kShift;
    const float subnormal = float_of(shifted + kMinNormal) - float_of(kMinNormal);
    uint32_t r = shifted < (1u << 23) ? bits_of(subnormal) : shifted + kRebias;
    if constexpr (kFormat.has_infinity()) r = magnitude >= kMaxCode ? (shifted | 0x7f800000u) : r;
    else r = magnitude > kMaxCode ? 0x7fc00000u : r;
    return float_of(r | sign);
  }
  static RONDO_HOST_DEVICE_INLINE Unsigned<kBytes> narrow(float a) {
    const uint32_t bits = bits_of(a);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> (32 - kBits) & kSign;
    const uint32_t odd = magnitude >> kShift & 1;
    const uint32_t normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kRounder)) - kRounder;
    uint32_t r = magnitude < kMinNormal ? subnormal : normal;
    r = r > kMaxCode ? kMaxCode : r;
    return static_cast<Unsigned<kBytes>>(a == a ? (r | sign) : kNanCode);
  }
};
using Fp16Bits = NarrowElement<Dtype::kFloat16>;

struct Fp16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kFloat = true;
  using Acc = float;
  static RONDO_HOST_DEVICE_INLINE float widen(uint16_t code) {
#if defined(__CUDA_ARCH__)
    float a;
    asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(code));
    return a;
#else
    return Fp16Bits::widen(code);
#endif
  }
  static RONDO_HOST_DEVICE_INLINE uint16_t narrow(float a) {
#if defined(__CUDA_ARCH__)
    uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(a));
    return a == a ? code : static_cast<uint16_t>(0x7e00);
#else
    return Fp16Bits::narrow(a);
#endif
  }
};

template <Dtype kDtype, bool kNarrow = is_narrow_float(kDtype)>
struct ElementOf {
  using Code = Unsigned<static_cast<int>(dtype_bytes(kDtype))>;
  using type = IntElement<std::conditional_t<is_signed(kDtype), std::make_signed_t<Code>, Code>>;
};
template <Dtype kDtype>
struct ElementOf<kDtype, true> {
  using type = NarrowElement<kDtype>;
};
#define RONDO_ELEMENT(dtype, element)                             \
  template <>                                                     \
  struct ElementOf<Dtype::dtype, is_narrow_float(Dtype::dtype)> { \
    using type = element;                                         \
  };
RONDO_ELEMENT(kFloat16, Fp16Element)
RONDO_ELEMENT(kFloat32, Fp32Element)
RONDO_ELEMENT(kFloat64, Fp64Element)
RONDO_ELEMENT(kBfloat16, Bf16Element)
#undef RONDO_ELEMENT
template <Dtype kDtype>
using Element = typename ElementOf<kDtype>::type;

// Operations on two accumulators.

/// Integers wrap: they are added and multiplied as unsigned numbers.
template <class T>
RONDO_HOST_DEVICE_INLINE T added(T a, T b) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
RONDO_HOST_DEVICE_INLINE float added(float a, float b) { return a + b; }
RONDO_HOST_DEVICE_INLINE double added(double a, double b) { return a + b; }
template <class T>
RONDO_HOST_DEVICE_INLINE T multiplied(T a, T b) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
RONDO_HOST_DEVICE_INLINE float multiplied(float a, float b) { return a * b; }
RONDO_HOST_DEVICE_INLINE double multiplied(double a, double b) { return a * b; }

/// IEEE 754-2019 maximum and minimum: a NaN on either side wins, -0 < +0.
template <bool kMax>
RONDO_HOST_DEVICE_INLINE float extreme(float a, float b) {
  float r = kMax ? (a > b ? a : b) : (a < b ? a : b);
  r = a == b ? float_of(kMax ? bits_of(a) & bits_of(b) : bits_of(a) | bits_of(b)) : r;
  return a == a ? r : a;
}
template <bool kMax>
RONDO_HOST_DEVICE_INLINE double extreme(double a, double b) {
  double r = kMax ? (a > b ? a : b) : (a < b ? a : b);
  r = a == b ? double_of(kMax ? bits_of(a) & bits_of(b) : bits_of(a) | bits_of(b)) : r;
  return a == a ? r : a;
}
template <bool kMax, class T>
RONDO_HOST_DEVICE_INLINE T extreme(T a, T b) {
  if constexpr (kMax) return a > b ? a : b;
  else return a < b ? a : b;
}

/// kOp: kSum, kProd, kMax or kMin.
template <Op kOp, class Acc>
RONDO_HOST_DEVICE_INLINE Acc joined(Acc a, Acc b) {
  static_assert(kOp == Op::kSum || kOp == Op::kProd || kOp == Op::kMax || kOp == Op::kMin);
  if constexpr (kOp == Op::kSum) return added(a, b);
  else if constexpr (kOp == Op::kProd) return multiplied(a, b);
  else return extreme<kOp == Op::kMax>(a, b);
}

/// The mean of a sum: floats divided as on the host, integers truncated toward zero.
template <class T>
RONDO_HOST_DEVICE_INLINE T divided(T sum, uint32_t divisor) {
  if constexpr (sizeof(T) == 8) return static_cast<T>(sum / static_cast<T>(divisor));
  else if constexpr (static_cast<T>(-1) < static_cast<T>(0))  // int32 sum; the number of ranks also fits int32
    return static_cast<T>(static_cast<int32_t>(sum) / static_cast<int32_t>(divisor));
  else return static_cast<T>(static_cast<uint32_t>(sum) / divisor);
}
// For a power of two both forms give the same bits, and the product is cheaper.
RONDO_HOST_DEVICE_INLINE float divided(float sum, uint32_t divisor) {
  const float n = static_cast<float>(divisor);
  return (divisor & (divisor - 1)) == 0 ? sum * (1.0f / n) : sum / n;
}
RONDO_HOST_DEVICE_INLINE double divided(double sum, uint32_t divisor) {
  const double n = static_cast<double>(divisor);
  return (divisor & (divisor - 1)) == 0 ? sum * (1.0 / n) : sum / n;
}

}  // namespace rondo::device_kernels
