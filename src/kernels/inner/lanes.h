// Conversions in element order: one register of fp32 from kLanes consecutive elements of any float format, and back.
// Included once per SIMD level; see vector.h.
//
//   bf16  | e0 e1 e2 e3 ... |        formats.h widens a whole storage vector and leaves even and odd elements apart,
//   fp32  | e0 | e1 | e2 | e3 ...    which a pass over one format need not undo; a pass that mixes formats needs
//                                    element i of every operand in the same lane.
//
// The conversion of a lane is that of formats.h, so the bits are too: nearest, ties to even; stored NaN canonical.
#pragma once

#include "kernels/inner/formats.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

constexpr uint64_t kLanes = kWidth / sizeof(float);
typedef uint16_t Codes16 __attribute__((vector_size(RONDO_KERNEL_WIDTH / 2)));
typedef uint8_t Codes8 __attribute__((vector_size(RONDO_KERNEL_WIDTH / 4)));

// What a format stores for one register of fp32: widen() and narrow() of Code, and round(): the value that comes back
// from this format. round() keeps a NaN a NaN, of whatever payload.
struct LanesFp32 {
  using Code = Bits;
  static RONDO_INLINE Floats widen(Code c) { return floats_of(c); }
  static RONDO_INLINE Code narrow(Floats v) { return Fp32::narrow(v); }
  static RONDO_INLINE Floats round(Floats v) { return v; }
};

struct LanesBf16 {
  using Code = Codes16;
  static RONDO_INLINE Floats widen(Code c) { return floats_of(__builtin_convertvector(c, Bits) << 16); }
  static RONDO_INLINE Code narrow(Floats v) { return __builtin_convertvector(Bf16::round(v) >> 16, Codes16); }
  static RONDO_INLINE Floats round(Floats v) { return floats_of(Bf16::round(v) & 0xffff0000u); }
};

#if RONDO_KERNEL_WIDTH == 64
struct LanesFp16 {
  using Code = Codes16;
  static RONDO_INLINE Floats widen(Code c) {
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(c)));
  }
  static RONDO_INLINE Code narrow(Floats v) {
    return reinterpret_cast<Code>(_mm512_cvtps_ph(reinterpret_cast<__m512>(canonical(v)), _MM_FROUND_TO_NEAREST_INT));
  }
  static RONDO_INLINE Floats round(Floats v) { return widen(narrow(v)); }
};
#elif RONDO_KERNEL_WIDTH == 32
struct LanesFp16 {
  using Code = Codes16;
  static RONDO_INLINE Floats widen(Code c) {
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(c)));
  }
  static RONDO_INLINE Code narrow(Floats v) {
    return reinterpret_cast<Code>(_mm256_cvtps_ph(reinterpret_cast<__m256>(canonical(v)), _MM_FROUND_TO_NEAREST_INT));
  }
  static RONDO_INLINE Floats round(Floats v) { return widen(narrow(v)); }
};
#endif

template <class F, class C>
struct LanesNarrow {
  using Code = C;
  static RONDO_INLINE Floats widen(Code c) { return F::widen_one(__builtin_convertvector(c, Bits)); }
  static RONDO_INLINE Code narrow(Floats v) { return __builtin_convertvector(F::narrow_one(v), C); }
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
