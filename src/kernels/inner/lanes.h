// Conversions in element order: one register of fp32 from kLanes consecutive elements of any float format, and back.
// Included once per SIMD level; see vector.h.
//
//   bf16  | e0 e1 e2 e3 ... |        formats.h widens a whole storage vector and separates even and odd elements,
//   fp32  | e0 | e1 | e2 | e3 ...    which suits a pass over one format. A pass that mixes formats needs element i of
//                                    every operand in the same lane.
//
// Each lane is converted as in formats.h, with the same bits: nearest, ties to even; stored NaN canonical.
#pragma once

#include "kernels/inner/formats.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

constexpr uint64_t kLanes = kWidth / sizeof(float);
typedef uint16_t Codes16 __attribute__((vector_size(RONDO_KERNEL_WIDTH / 2)));
typedef uint8_t Codes8 __attribute__((vector_size(RONDO_KERNEL_WIDTH / 4)));

// Converts codes to the lower bits of lanes (upper bits 0) and back. Uses intrinsics, because GCC 12 splits
// __builtin_convertvector into halves: the sum of eight bf16 operands took twice as long.
#if RONDO_KERNEL_WIDTH == 64
RONDO_INLINE Bits lanes_of(Codes16 c) {
  return reinterpret_cast<Bits>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(c)));
}
RONDO_INLINE Bits lanes_of(Codes8 c) {
  return reinterpret_cast<Bits>(_mm512_cvtepu8_epi32(reinterpret_cast<__m128i>(c)));
}
RONDO_INLINE void codes_of(Bits v, Codes16* c) {
  *c = reinterpret_cast<Codes16>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(v)));
}
RONDO_INLINE void codes_of(Bits v, Codes8* c) {
  *c = reinterpret_cast<Codes8>(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
}
#elif RONDO_KERNEL_WIDTH == 32
RONDO_INLINE Bits lanes_of(Codes16 c) {
  return reinterpret_cast<Bits>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(c)));
}
RONDO_INLINE Bits lanes_of(Codes8 c) {
  uint64_t bytes;
  __builtin_memcpy(&bytes, &c, sizeof(bytes));
  return reinterpret_cast<Bits>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
}
RONDO_INLINE __m128i packed(Bits v) {
  const __m256i pairs = _mm256_packus_epi32(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v));
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08));
}
RONDO_INLINE void codes_of(Bits v, Codes16* c) { *c = reinterpret_cast<Codes16>(packed(v)); }
RONDO_INLINE void codes_of(Bits v, Codes8* c) {
  const uint64_t bytes = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16(packed(v), packed(v))));
  __builtin_memcpy(c, &bytes, sizeof(bytes));
}
#else
template <class C>
RONDO_INLINE Bits lanes_of(C c) {
  return __builtin_convertvector(c, Bits);
}
template <class C>
RONDO_INLINE void codes_of(Bits v, C* c) {
  *c = __builtin_convertvector(v, C);
}
#endif
template <class C>
RONDO_INLINE C codes(Bits v) {
  C c;
  codes_of(v, &c);
  return c;
}

// The format of one register of fp32 in memory: widen() and narrow() of Code, and round(), the value after narrow() and
// widen(). round() keeps a NaN, with any payload.
struct LanesFp32 {
  using Code = Bits;
  static RONDO_INLINE Floats widen(Code c) { return floats_of(c); }
  static RONDO_INLINE Code narrow(Floats v) { return Fp32::narrow(v); }
  static RONDO_INLINE Floats round(Floats v) { return v; }
};

struct LanesBf16 {
  using Code = Codes16;
  static RONDO_INLINE Floats widen(Code c) { return floats_of(lanes_of(c) << 16); }
#if RONDO_KERNEL_WIDTH == 64
  static RONDO_INLINE Code narrow(Floats v) {  // one permutation instead of a shift and a two-step conversion
    typedef uint16_t Words __attribute__((vector_size(64)));
    constexpr Words kUpperHalves = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i words =
        _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(kUpperHalves), reinterpret_cast<__m512i>(Bf16::round(v)));
    return reinterpret_cast<Code>(_mm512_castsi512_si256(words));
  }
#else
  static RONDO_INLINE Code narrow(Floats v) { return codes<Codes16>(Bf16::round(v) >> 16); }
#endif
  static RONDO_INLINE Floats round(Floats v) { return floats_of(Bf16::round(v) & 0xffff0000u); }
};

#if RONDO_KERNEL_WIDTH != 16
struct LanesFp16 {
  using Code = Codes16;
  static RONDO_INLINE Floats widen(Code c) { return widen_fp16(reinterpret_cast<HalfRaw>(c)); }
  static RONDO_INLINE Code narrow(Floats v) { return narrow_number(canonical(v)); }
  // v: no NaN but the canonical one.
  static RONDO_INLINE Code narrow_number(Floats v) { return reinterpret_cast<Code>(narrow_fp16(v)); }
  static RONDO_INLINE Floats round(Floats v) { return widen(narrow(v)); }
};
#endif

template <class F, class C>
struct LanesNarrow {
  using Code = C;
  static RONDO_INLINE Floats widen(Code c) { return F::widen_one(lanes_of(c)); }
  static RONDO_INLINE Code narrow(Floats v) { return codes<C>(F::narrow_one(v)); }
  static RONDO_INLINE Floats round(Floats v) { return F::widen_one(F::narrow_one(v)); }
};
using LanesE4m3 = LanesNarrow<E4m3, Codes8>;
using LanesE5m2 = LanesNarrow<E5m2, Codes8>;
#if RONDO_KERNEL_WIDTH == 16
using LanesFp16 = LanesNarrow<Fp16, Codes16>;
#endif

template <class L>
constexpr uint64_t kElemBytes = sizeof(typename L::Code) / kLanes;

template <class L>
RONDO_INLINE Floats load_lanes(const uint8_t* p) {
  typename L::Code c;
  __builtin_memcpy(&c, p, sizeof(c));
  return L::widen(c);
}
// The first n elements, 1 <= n < kLanes; the other lanes hold 0.
template <class L>
RONDO_INLINE Floats load_some_lanes(const uint8_t* p, uint64_t n) {
  const Raw bytes = load_partial(p, n * kElemBytes<L>);
  typename L::Code c;
  __builtin_memcpy(&c, &bytes, sizeof(c));
  return L::widen(c);
}
template <class C>
RONDO_INLINE void store_codes(uint8_t* p, C c) {
  __builtin_memcpy(p, &c, sizeof(c));
}
template <class C>
RONDO_INLINE void store_some_codes(uint8_t* p, C c, uint64_t n) {
  Raw bytes = {};
  __builtin_memcpy(&bytes, &c, sizeof(c));
  store_partial(p, bytes, n * (sizeof(C) / kLanes));
}

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
