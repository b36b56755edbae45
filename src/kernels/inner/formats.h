// Element formats on vectors: storage <-> accumulators. Included once per SIMD level; see vector.h.
//
// A storage vector of 8- or 16-bit floats is treated as lanes of 32 bits with two or four elements each. The elements
// at position k of all lanes form accumulator k. Widening and narrowing are then shifts and masks inside a lane,
// without shuffles, with the same code at every level, and with full-width loads and stores. The order inside a vector
// does not matter, because narrow() undoes widen().
//
// Every NaN result is stored as the format's canonical NaN. Which of two NaN operands survives an addition depends on
// the operand order of the instruction, which the compiler chooses.
#pragma once

#include "kernels/float_formats.h"
#include "kernels/inner/vector.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

using Bits = Vec<uint32_t>;
using Floats = Vec<float>;
using Doubles = Vec<double>;

RONDO_INLINE Bits bits_of(Floats v) { return reinterpret_cast<Bits>(v); }
RONDO_INLINE Floats floats_of(Bits v) { return reinterpret_cast<Floats>(v); }
RONDO_INLINE Bits all_lanes(uint32_t v) { return Bits{} + v; }

#if RONDO_KERNEL_WIDTH == 64
// One instruction instead of a comparison and a blend. The table has four bits for each class of the operand: 0 keeps
// the first argument (quiet and signalling NaN, the lowest two classes), 1 takes the operand.
constexpr long long kReplaceNan = 0x11111100;
RONDO_INLINE Floats canonical(Floats v) {
  const __m512 nan = reinterpret_cast<__m512>(all_lanes(0x7fc00000));
  return reinterpret_cast<Floats>(
      _mm512_fixupimm_ps(nan, reinterpret_cast<__m512>(v), _mm512_set1_epi32(kReplaceNan), 0));
}
RONDO_INLINE Doubles canonical(Doubles v) {
  const __m512d nan = reinterpret_cast<__m512d>(Vec<uint64_t>{} + 0x7ff8000000000000u);
  return reinterpret_cast<Doubles>(
      _mm512_fixupimm_pd(nan, reinterpret_cast<__m512d>(v), _mm512_set1_epi64(kReplaceNan), 0));
}
#else
RONDO_INLINE Floats canonical(Floats v) {
  return v == v ? v : floats_of(all_lanes(0x7fc00000));
}
RONDO_INLINE Doubles canonical(Doubles v) {
  return v == v ? v : reinterpret_cast<Doubles>(Vec<uint64_t>{} + 0x7ff8000000000000u);
}
#endif

// Codes of a narrow float with canonical NaN. V: lanes of T, signed because SIMD instructions compare signed.
template <Dtype kDtype, class T, class V>
RONDO_INLINE V canonical_codes(V code) {
  constexpr FloatFormat kFormat = float_format(kDtype);
  const V magnitude = code & static_cast<T>((1u << (8 * sizeof(T) - 1)) - 1);
  return magnitude > static_cast<T>(kFormat.max_code) ? V{} + static_cast<T>(kFormat.nan_code) : code;
}

// The accumulators of one storage vector.
template <int P, class V>
struct Pack {
  V v[P];
};
#define RONDO_PACK_OP(op)                                                       \
  template <int P, class V>                                                     \
  RONDO_INLINE Pack<P, V> operator op(const Pack<P, V>& a, const Pack<P, V>& b) { \
    Pack<P, V> r;                                                               \
    for (int k = 0; k < P; ++k) r.v[k] = a.v[k] op b.v[k];                      \
    return r;                                                                   \
  }                                                                             \
  template <int P, class V, class S>                                            \
  RONDO_INLINE Pack<P, V> operator op(const Pack<P, V>& a, S scalar) {          \
    Pack<P, V> r;                                                               \
    for (int k = 0; k < P; ++k) r.v[k] = a.v[k] op scalar;                      \
    return r;                                                                   \
  }
RONDO_PACK_OP(+)
RONDO_PACK_OP(*)
RONDO_PACK_OP(/)
#undef RONDO_PACK_OP

struct Fp32 {
  using Acc = Floats;
  using Scalar = float;
  static RONDO_INLINE Acc widen(Raw x) { return floats_of(x); }
  static RONDO_INLINE Raw narrow(Acc a) { return bits_of(canonical(a)); }
};

struct Fp64 {
  using Acc = Doubles;
  using Scalar = double;
  static RONDO_INLINE Acc widen(Raw x) { return reinterpret_cast<Doubles>(x); }
  static RONDO_INLINE Raw narrow(Acc a) { return reinterpret_cast<Raw>(canonical(a)); }
};

struct Bf16 {
  using Acc = Pack<2, Floats>;
  using Scalar = float;
  static RONDO_INLINE Acc widen(Raw x) { return {{floats_of(x << 16), floats_of(x & 0xffff0000u)}}; }
  // Adds half of the last kept place minus one, plus one if that place is odd, then truncates. The canonical NaN
  // survives.
  static RONDO_INLINE Bits round(Floats v) { return round_number(canonical(v)); }
  static RONDO_INLINE Bits round_number(Floats v) {  // v: no NaN but the canonical one
    const Bits x = bits_of(v);
#if RONDO_KERNEL_WIDTH == 64
    const __m512i bits = reinterpret_cast<__m512i>(x);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    return reinterpret_cast<Bits>(
        _mm512_mask_add_epi32(reinterpret_cast<__m512i>(x + 0x7fffu), odd, bits, _mm512_set1_epi32(0x8000)));
#else
    return x + 0x7fffu + ((x >> 16) & 1u);
#endif
  }
  static RONDO_INLINE Raw narrow(const Acc& a) { return (round(a.v[0]) >> 16) | (round(a.v[1]) & 0xffff0000u); }
};

// fp16, e4m3 and e5m2 by arithmetic on the bits. Multiplying subnormals would be shorter, but costs a microcode assist
// per vector on many processors, and gives zeros if the caller's thread flushes subnormals.
template <Dtype kDtype>
struct NarrowFloat {
  static constexpr FloatFormat kFormat = float_format(kDtype);
  static constexpr uint32_t kMaxCode = kFormat.max_code;
  static constexpr uint32_t kNanCode = kFormat.nan_code;
  static constexpr int kBits = static_cast<int>(8 * dtype_bytes(kDtype));
  static constexpr int kPerLane = 32 / kBits;
  static constexpr int kShift = 23 - kFormat.mantissa_bits;
  static constexpr uint32_t kSign = 1u << (kBits - 1);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kFormat.bias) << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  // A power of two whose last fp32 place is the narrow format's smallest number: adding it rounds to that place.
  static constexpr uint32_t kRounder = static_cast<uint32_t>(127 + 1 - kFormat.bias - kFormat.mantissa_bits + 23) << 23;
  using Acc = Pack<kPerLane, Floats>;
  using Scalar = float;

  // code: one element in the lower bits of each lane; the upper bits are ignored.
  static RONDO_INLINE Floats widen_one(Bits code) {
    const Bits sign = (code & kSign) << (32 - kBits);
    const Bits magnitude = code & (kSign - 1);
    const Bits shifted = magnitude << kShift;
    const Floats subnormal = floats_of(shifted + kMinNormal) - floats_of(all_lanes(kMinNormal));
    Bits r = shifted < (1u << 23) ? bits_of(subnormal) : shifted + kRebias;
    constexpr uint32_t kNanFrom = kMaxCode + 1;
    if constexpr (kFormat.has_infinity()) {
      r = magnitude >= kMaxCode ? (shifted | 0x7f800000u) : r;
    } else {
      r = magnitude >= kNanFrom ? all_lanes(0x7fc00000) : r;
    }
    return floats_of(r | sign);
  }
  static RONDO_INLINE Bits narrow_one(Floats v) {
    const Bits x = bits_of(v);
    const Bits magnitude = x & 0x7fffffffu;
    const Bits sign = (x >> (32 - kBits)) & kSign;
    const Bits odd = (magnitude >> kShift) & 1u;
    const Bits normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const Bits subnormal = bits_of(floats_of(magnitude) + floats_of(all_lanes(kRounder))) - kRounder;
    Bits r = magnitude < kMinNormal ? subnormal : normal;
    r = r > kMaxCode ? all_lanes(kMaxCode) : r;
    return v == v ? (r | sign) : all_lanes(kNanCode);
  }
  static RONDO_INLINE Acc widen(Raw x) {
    Acc a;
    for (int k = 0; k < kPerLane; ++k) a.v[k] = widen_one(x >> (k * kBits));
    return a;
  }
  static RONDO_INLINE Raw narrow(const Acc& a) {
    Bits r = narrow_one(a.v[0]);
    for (int k = 1; k < kPerLane; ++k) r |= narrow_one(a.v[k]) << (k * kBits);
    return r;
  }
};

using E4m3 = NarrowFloat<Dtype::kFloat8E4m3>;
using E5m2 = NarrowFloat<Dtype::kFloat8E5m2>;

#if RONDO_KERNEL_WIDTH == 16
using Fp16 = NarrowFloat<Dtype::kFloat16>;
#else
// F16C and AVX-512 convert in hardware, from and to half a register. With a canonical NaN first, the bits equal the
// arithmetic above.
#if RONDO_KERNEL_WIDTH == 64
using HalfRaw = __m256i;
RONDO_INLINE HalfRaw lower_half(Raw x) { return _mm512_castsi512_si256(reinterpret_cast<__m512i>(x)); }
RONDO_INLINE HalfRaw upper_half(Raw x) { return _mm512_extracti64x4_epi64(reinterpret_cast<__m512i>(x), 1); }
RONDO_INLINE Raw both_halves(HalfRaw lo, HalfRaw hi) {
  return reinterpret_cast<Raw>(_mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}
RONDO_INLINE Floats widen_fp16(HalfRaw c) { return reinterpret_cast<Floats>(_mm512_cvtph_ps(c)); }
RONDO_INLINE HalfRaw narrow_fp16(Floats v) {
  return _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
}
#else
using HalfRaw = __m128i;
RONDO_INLINE HalfRaw lower_half(Raw x) { return _mm256_castsi256_si128(reinterpret_cast<__m256i>(x)); }
RONDO_INLINE HalfRaw upper_half(Raw x) { return _mm256_extracti128_si256(reinterpret_cast<__m256i>(x), 1); }
RONDO_INLINE Raw both_halves(HalfRaw lo, HalfRaw hi) {
  return reinterpret_cast<Raw>(_mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1));
}
RONDO_INLINE Floats widen_fp16(HalfRaw c) { return reinterpret_cast<Floats>(_mm256_cvtph_ps(c)); }
RONDO_INLINE HalfRaw narrow_fp16(Floats v) {
  return _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
}
#endif
struct Fp16 {
  using Acc = Pack<2, Floats>;
  using Scalar = float;
  static RONDO_INLINE Acc widen(Raw x) { return {{widen_fp16(lower_half(x)), widen_fp16(upper_half(x))}}; }
  static RONDO_INLINE Raw narrow(const Acc& a) {
    return both_halves(narrow_fp16(canonical(a.v[0])), narrow_fp16(canonical(a.v[1])));
  }
};
#endif

// The format of a float type.
template <Dtype kDtype>
struct FormatOf {
  using type = NarrowFloat<kDtype>;
};
#define RONDO_FORMAT(dtype, format) \
  template <>                       \
  struct FormatOf<Dtype::dtype> {   \
    using type = format;            \
  };
RONDO_FORMAT(kFloat16, Fp16)
RONDO_FORMAT(kFloat32, Fp32)
RONDO_FORMAT(kFloat64, Fp64)
RONDO_FORMAT(kBfloat16, Bf16)
#undef RONDO_FORMAT

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
