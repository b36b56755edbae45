// Element types in a kernel: conversions between the bits of an element and its accumulator. They are bit-identical to
// the host kernels (src/kernels/inner/formats.h): round to nearest even, subnormals kept, NaN stored as the canonical
// one.
//
// fp16 and bf16 use the conversion instructions of sm_80 and later, with a corrected NaN. On sm_89 and later
// the fp8 images use the hardware's conversions. These saturate e5m2, and the code corrects that. Elsewhere fp8 is
// widened as fp16, and narrowed by integer arithmetic.
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

RONDO_HOST_DEVICE_INLINE uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }
RONDO_HOST_DEVICE_INLINE float float_of(uint32_t v) { return std::bit_cast<float>(v); }

/// Integers: the type is its own accumulator.
template <class T>
struct IntElement {
  static constexpr int kBytes = sizeof(T);
  using Acc = T;
  static RONDO_HOST_DEVICE_INLINE Acc widen(Unsigned<kBytes> code) { return static_cast<T>(code); }
  static RONDO_HOST_DEVICE_INLINE Unsigned<kBytes> narrow(Acc a) { return static_cast<Unsigned<kBytes>>(a); }
};

/// fp32 and fp64: the same, with canonical NaN.
template <class T>
struct WideElement {
  static constexpr int kBytes = sizeof(T);
  using Acc = T;
  static constexpr Unsigned<kBytes> kNan = kBytes == 4 ? 0x7fc00000u : 0x7ff8000000000000u;
  static RONDO_HOST_DEVICE_INLINE T widen(Unsigned<kBytes> code) { return std::bit_cast<T>(code); }
  static RONDO_HOST_DEVICE_INLINE Unsigned<kBytes> narrow(T a) {
    return a == a ? std::bit_cast<Unsigned<kBytes>>(a) : kNan;
  }
};
using Fp32Element = WideElement<float>;
using Fp64Element = WideElement<double>;
struct Bf16Element {
  static constexpr int kBytes = 2;
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

/// fp16, e4m3 and e5m2 by arithmetic on the bits, as NarrowFloat of the host kernels: if there is no instruction.
template <Dtype kDtype>
struct NarrowElement {
  static constexpr FloatFormat kFormat = float_format(kDtype);
  static constexpr uint32_t kMaxCode = kFormat.max_code;
  static constexpr uint32_t kNanCode = kFormat.nan_code;
  static constexpr int kBytes = static_cast<int>(dtype_bytes(kDtype));
  static constexpr int kBits = 8 * kBytes;
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

/// fp8. A code of e5m2 is the upper half of an fp16. A code of e4m3, shifted, is an fp16 of the 256th part. Words of
/// four elements are faster than single ones, because an instruction converts two.
template <Dtype kDtype>
struct Fp8Element {
  using Bits = NarrowElement<kDtype>;
  static constexpr int kBytes = 1;
  static constexpr bool kHasInfinity = Bits::kFormat.has_infinity();
  using Acc = float;
  static RONDO_HOST_DEVICE_INLINE float widen(uint8_t code) {
    if constexpr (kHasInfinity) {
      return Fp16Element::widen(static_cast<uint16_t>(code << 8));
    } else {
      const uint32_t magnitude = code & 0x7fu;
      const float a = Fp16Element::widen(static_cast<uint16_t>((code & 0x80u) << 8 | magnitude << 7)) * 256.0f;
      return magnitude > Bits::kMaxCode ? float_of(0x7fc00000u) : a;
    }
  }
  static RONDO_HOST_DEVICE_INLINE uint8_t narrow(float a) { return static_cast<uint8_t>(narrow_pair(a, a)); }

  static RONDO_HOST_DEVICE_INLINE void widen_word(uint32_t codes, float* a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    RONDO_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const uint16_t pair = static_cast<uint16_t>(codes >> 8 * i);
      uint32_t halves;
      if constexpr (kHasInfinity) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
      else asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
      a[i] = Fp16Element::widen(static_cast<uint16_t>(halves));
      a[i + 1] = Fp16Element::widen(static_cast<uint16_t>(halves >> 16));
    }
#else
    RONDO_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = widen(static_cast<uint8_t>(codes >> 8 * i));
#endif
  }
  static RONDO_HOST_DEVICE_INLINE uint32_t narrow_word(const float* a) {
    return narrow_pair(a[0], a[1]) | narrow_pair(a[2], a[3]) << 16;
  }

 private:
  static RONDO_HOST_DEVICE_INLINE uint32_t narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if constexpr (!kHasInfinity) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
      return codes;
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
      return overflowed(low, codes & 0xffu) | overflowed(high, codes >> 8) << 8;
    }
#else
    return Bits::narrow(low) | static_cast<uint32_t>(Bits::narrow(high)) << 8;
#endif
  }
  // The instruction saturates to the largest finite number. 61440 is the least number that rounds to infinity.
  static RONDO_HOST_DEVICE_INLINE uint32_t overflowed(float a, uint32_t code) {
    const uint32_t magnitude = bits_of(a) & 0x7fffffffu;
    return magnitude >= 0x47700000u && magnitude <= 0x7f800000u ? (code & 0x80u) | Bits::kMaxCode : code;
  }
};

template <Dtype kDtype, bool kNarrow = is_narrow_float(kDtype)>
struct ElementOf {
  using Code = Unsigned<static_cast<int>(dtype_bytes(kDtype))>;
  using type = IntElement<std::conditional_t<is_signed(kDtype), std::make_signed_t<Code>, Code>>;
};
template <Dtype kDtype>
struct ElementOf<kDtype, true> {
  using type = Fp8Element<kDtype>;
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
using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <class T>
RONDO_HOST_DEVICE_INLINE T added(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  else return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
RONDO_HOST_DEVICE_INLINE T multiplied(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a * b;
  else return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}

/// Of floats as in IEEE 754-2019: a NaN on either side wins, -0 < +0.
template <bool kMax, class T>
RONDO_HOST_DEVICE_INLINE T extreme(T a, T b) {
  T r = kMax ? (a > b ? a : b) : (a < b ? a : b);
  if constexpr (std::is_floating_point_v<T>) {
    using Code = Unsigned<sizeof(T)>;
    const Code x = std::bit_cast<Code>(a), y = std::bit_cast<Code>(b);
    r = a == b ? std::bit_cast<T>(kMax ? x & y : x | y) : r;
    r = a == a ? r : a;
  }
  return r;
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
  if constexpr (std::is_floating_point_v<T>) {
    const T n = static_cast<T>(divisor);
    // For a power of two both forms give the same bits, and the product is cheaper.
    return (divisor & (divisor - 1)) == 0 ? sum * (T{1} / n) : sum / n;
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<T>(sum / static_cast<T>(divisor));
  } else if constexpr (std::is_signed_v<T>) {  // int32 sum; the number of ranks also fits int32
    return static_cast<T>(static_cast<int32_t>(sum) / static_cast<int32_t>(divisor));
  } else {
    return static_cast<T>(static_cast<uint32_t>(sum) / divisor);
  }
}

}  // namespace rondo::device_kernels
