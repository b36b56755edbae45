// bf16 and fp16 together with fp32, for passes that hold many elements in registers: one register of 16-bit codes
// corresponds to a pair of fp32 registers. Included once per SIMD level; see vector.h.
//
// Each format chooses the lane of an element in the pair so that the wire's side is cheapest, because it has many
// sources. fp32 memory is permuted to the same order when loaded and stored:
//
//   bf16, 64 bytes    even elements | odd elements    a shift and a mask widen; fp32 by permutations of two registers
//   bf16, 16 and 32   unpacked within 16 bytes        zeros as lower halves widen; fp32 by loads of 16 bytes
//   fp16              in order, two halves            as the processor's conversions need it
//
// A format has Code with load, store and canonical (codes with canonical NaN), widen, narrow and round (as in lanes.h;
// <true> if no operand is NaN, which saves making it canonical), load_floats and store_floats (unchanged bits).
#pragma once

#include "kernels/inner/lanes.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

constexpr uint64_t kPairElems = 2 * kLanes;
using Pair = Pack<2, Floats>;
typedef int16_t Words16 __attribute__((vector_size(RONDO_KERNEL_WIDTH)));

typedef int16_t HalfWords16 __attribute__((vector_size(RONDO_KERNEL_WIDTH / 2)));

// False if a lane may be NaN: the sum of all lanes is NaN then. It is one comparison and a well-predicted branch, while
// a blend of every register costs as much as the rounding. AVX-512 has an instruction for the latter.
template <int kPairs>
RONDO_INLINE bool numbers_only([[maybe_unused]] const Pair* x) {
#if defined(__x86_64__) && RONDO_KERNEL_WIDTH != 64
  Floats sum = x[0].v[0] + x[0].v[1];
  for (int u = 1; u < kPairs; ++u) sum = sum + (x[u].v[0] + x[u].v[1]);
#if RONDO_KERNEL_WIDTH == 32
  const __m256 all = reinterpret_cast<__m256>(sum);
  return _mm256_movemask_ps(_mm256_cmp_ps(all, all, _CMP_UNORD_Q)) == 0;
#else
  const __m128 all = reinterpret_cast<__m128>(sum);
  return _mm_movemask_ps(_mm_cmpunord_ps(all, all)) == 0;
#endif
#else
  return false;
#endif
}

// The same for many registers rounded one after the other: AVX-512 compares two of them in one instruction.
template <int kPairs>
RONDO_INLINE bool no_nan(const Pair* x) {
#if RONDO_KERNEL_WIDTH == 64
  uint32_t nan = 0;
  for (int u = 0; u < kPairs; ++u)
    nan |= _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x[u].v[0]), reinterpret_cast<__m512>(x[u].v[1]), _CMP_UNORD_Q);
  return nan == 0;
#else
  return numbers_only<kPairs>(x);
#endif
}

struct PairBf16 {
  using Code = Raw;
  static constexpr bool kAsksAhead = kWidth == 64;  // fused.h
  static RONDO_INLINE Code load_code(const uint8_t* p) { return load(p); }
  static RONDO_INLINE void store_code(uint8_t* p, Code c) { store(p, c); }
  static RONDO_INLINE Code canonical(Code c) {
    return reinterpret_cast<Code>(canonical_codes<Dtype::kBfloat16, int16_t>(reinterpret_cast<Words16>(c)));
  }
  template <bool kNumbers>
  static RONDO_INLINE Bits rounded(Floats v) {
    return kNumbers ? Bf16::round_number(v) : Bf16::round(v);
  }
  template <bool kNumbers>
  static RONDO_INLINE Pair round(const Pair& a) {
    return {{floats_of(rounded<kNumbers>(a.v[0]) & 0xffff0000u), floats_of(rounded<kNumbers>(a.v[1]) & 0xffff0000u)}};
  }
#if RONDO_KERNEL_WIDTH == 64
  static RONDO_INLINE Pair widen(Code c) { return Bf16::widen(c); }
  template <bool kNumbers>
  static RONDO_INLINE Code narrow(const Pair& a) {
    return (rounded<kNumbers>(a.v[0]) >> 16) | (rounded<kNumbers>(a.v[1]) & 0xffff0000u);
  }
  static RONDO_INLINE Pair load_floats(const uint8_t* p) {
    const Floats a = floats_of(load(p)), b = floats_of(load(p + kWidth));
    return {{__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
             __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)}};
  }
  static RONDO_INLINE void store_floats(uint8_t* p, const Pair& a) {
    const Floats lower =
        __builtin_shufflevector(a.v[0], a.v[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Floats upper =
        __builtin_shufflevector(a.v[0], a.v[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    store(p, bits_of(lower));
    store(p + kWidth, bits_of(upper));
  }
#elif RONDO_KERNEL_WIDTH == 32
  static RONDO_INLINE Pair widen(Code c) {
    const __m256i zero = _mm256_setzero_si256(), x = reinterpret_cast<__m256i>(c);
    return {{reinterpret_cast<Floats>(_mm256_unpacklo_epi16(zero, x)),
             reinterpret_cast<Floats>(_mm256_unpackhi_epi16(zero, x))}};
  }
  template <bool kNumbers>
  static RONDO_INLINE Code narrow(const Pair& a) {
    return reinterpret_cast<Code>(_mm256_packus_epi32(reinterpret_cast<__m256i>(rounded<kNumbers>(a.v[0]) >> 16),
                                                      reinterpret_cast<__m256i>(rounded<kNumbers>(a.v[1]) >> 16)));
  }
  static RONDO_INLINE Pair load_floats(const uint8_t* p) {
    const float* f = reinterpret_cast<const float*>(p);
    return {{reinterpret_cast<Floats>(_mm256_loadu2_m128(f + 8, f)),
             reinterpret_cast<Floats>(_mm256_loadu2_m128(f + 12, f + 4))}};
  }
  static RONDO_INLINE void store_floats(uint8_t* p, const Pair& a) {
    float* f = reinterpret_cast<float*>(p);
    _mm256_storeu2_m128(f + 8, f, reinterpret_cast<__m256>(a.v[0]));
    _mm256_storeu2_m128(f + 12, f + 4, reinterpret_cast<__m256>(a.v[1]));
  }
#else
  static RONDO_INLINE Pair widen(Code c) {
    const Words16 x = reinterpret_cast<Words16>(c);
    return {{reinterpret_cast<Floats>(__builtin_shufflevector(Words16{}, x, 0, 8, 1, 9, 2, 10, 3, 11)),
             reinterpret_cast<Floats>(__builtin_shufflevector(Words16{}, x, 4, 12, 5, 13, 6, 14, 7, 15))}};
  }
  template <bool kNumbers>
  static RONDO_INLINE Code narrow(const Pair& a) {
#if defined(__x86_64__)
    typedef int32_t Signed __attribute__((vector_size(16)));
    const Signed lower = reinterpret_cast<Signed>(rounded<kNumbers>(a.v[0])) >> 16;
    const Signed upper = reinterpret_cast<Signed>(rounded<kNumbers>(a.v[1])) >> 16;
    return reinterpret_cast<Code>(_mm_packs_epi32(reinterpret_cast<__m128i>(lower), reinterpret_cast<__m128i>(upper)));
#else
    const Words16 lower = reinterpret_cast<Words16>(rounded<kNumbers>(a.v[0]));
    const Words16 upper = reinterpret_cast<Words16>(rounded<kNumbers>(a.v[1]));
    return reinterpret_cast<Code>(__builtin_shufflevector(lower, upper, 1, 3, 5, 7, 9, 11, 13, 15));
#endif
  }
  static RONDO_INLINE Pair load_floats(const uint8_t* p) { return {{floats_of(load(p)), floats_of(load(p + kWidth))}}; }
  static RONDO_INLINE void store_floats(uint8_t* p, const Pair& a) {
    store(p, bits_of(a.v[0]));
    store(p + kWidth, bits_of(a.v[1]));
  }
#endif
};

#if RONDO_KERNEL_WIDTH != 16  // otherwise fp16 is converted by arithmetic, which is the whole cost
// In order: element i of a pair is element i of memory.
struct PairFp16 {
  static constexpr bool kAsksAhead = kWidth == 64;
  struct Code {
    Codes16 half[2];
  };
  static RONDO_INLINE Code load_code(const uint8_t* p) {
    Code c;
    __builtin_memcpy(&c.half[0], p, sizeof(Codes16));
    __builtin_memcpy(&c.half[1], p + sizeof(Codes16), sizeof(Codes16));
    return c;
  }
  static RONDO_INLINE void store_code(uint8_t* p, Code c) {
    store_codes(p, c.half[0]);
    store_codes(p + sizeof(Codes16), c.half[1]);
  }
  static RONDO_INLINE Codes16 canonical(Codes16 half) {
    return reinterpret_cast<Codes16>(canonical_codes<Dtype::kFloat16, int16_t>(reinterpret_cast<HalfWords16>(half)));
  }
  static RONDO_INLINE Code canonical(Code c) { return {{canonical(c.half[0]), canonical(c.half[1])}}; }
  static RONDO_INLINE Pair widen(Code c) { return {{LanesFp16::widen(c.half[0]), LanesFp16::widen(c.half[1])}}; }
  template <bool kNumbers>
  static RONDO_INLINE Code narrow(const Pair& a) {
    if constexpr (kNumbers) return {{LanesFp16::narrow_number(a.v[0]), LanesFp16::narrow_number(a.v[1])}};
    return {{LanesFp16::narrow(a.v[0]), LanesFp16::narrow(a.v[1])}};
  }
  template <bool kNumbers>
  static RONDO_INLINE Pair round(const Pair& a) {
    return widen(narrow<kNumbers>(a));
  }
  static RONDO_INLINE Pair load_floats(const uint8_t* p) { return {{floats_of(load(p)), floats_of(load(p + kWidth))}}; }
  static RONDO_INLINE void store_floats(uint8_t* p, const Pair& a) {
    store(p, bits_of(a.v[0]));
    store(p + kWidth, bits_of(a.v[1]));
  }
};
#endif

// The format for passes without codes, in which fp32 keeps its order.
template <class F>
struct InOrder : F {
  static constexpr bool kAsksAhead = false;
  static RONDO_INLINE Pair load_floats(const uint8_t* p) { return {{floats_of(load(p)), floats_of(load(p + kWidth))}}; }
  static RONDO_INLINE void store_floats(uint8_t* p, const Pair& a) {
    store(p, bits_of(a.v[0]));
    store(p + kWidth, bits_of(a.v[1]));
  }
};

// Codes and fp32 of the first n elements of a pair, 1 <= n < kPairElems, through memory of a whole pair.
template <class F>
RONDO_INLINE typename F::Code load_some_codes(const uint8_t* p, uint64_t n) {
  const Raw bytes = load_partial(p, n * sizeof(uint16_t));
  typename F::Code c;
  __builtin_memcpy(&c, &bytes, sizeof(c));
  return c;
}
template <class F>
RONDO_INLINE void store_some_pair_codes(uint8_t* p, typename F::Code c, uint64_t n) {
  Raw bytes;
  __builtin_memcpy(&bytes, &c, sizeof(c));
  store_partial(p, bytes, n * sizeof(uint16_t));
}
template <class F>
RONDO_INLINE Pair load_some_floats(const uint8_t* p, uint64_t n) {
  alignas(kWidth) uint8_t all[2 * kWidth] = {};
  if (n >= kLanes) store(all, load(p));
  if (n < kLanes) store(all, load_partial(p, n * sizeof(float)));
  else if (n > kLanes) store(all + kWidth, load_partial(p + kWidth, (n - kLanes) * sizeof(float)));
  return F::load_floats(all);
}
template <class F>
RONDO_INLINE void store_some_floats(uint8_t* p, const Pair& a, uint64_t n) {
  alignas(kWidth) uint8_t all[2 * kWidth];
  F::store_floats(all, a);
  if (n < kLanes) return store_partial(p, load(all), n * sizeof(float));
  store(p, load(all));
  if (n > kLanes) store_partial(p + kWidth, load(all + kWidth), (n - kLanes) * sizeof(float));
}

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
