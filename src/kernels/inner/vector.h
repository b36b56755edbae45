// One storage vector of kWidth bytes: loads, partial loads, stores. Included once per SIMD level.
//
// Everything in inner/ is compiled once per level with that level's instruction set. No symbol may be shared by two
// levels: the linker would keep one copy for both and run AVX-512 code on a machine without it. Hence each level has
// its own namespace with an unnamed one inside, and calls no inline function or template of the standard library.
//
// The including file defines RONDO_KERNEL_LEVEL (the namespace) and RONDO_KERNEL_WIDTH (16, 32 or 64 bytes). Vectors
// are GCC vector extensions, which clang shares; intrinsics are used only if they are better.
#pragma once

#ifndef RONDO_KERNEL_LEVEL
#error "included by a level's own file, which names the level"
#endif

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RONDO_INLINE inline __attribute__((always_inline))

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

constexpr uint64_t kWidth = RONDO_KERNEL_WIDTH;

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(RONDO_KERNEL_WIDTH)));
};
template <class T>
using Vec = typename VecOf<T>::type;

// Loaded and stored bytes, as lanes of 32 bits.
using Raw = Vec<uint32_t>;
typedef uint32_t RawUnaligned __attribute__((vector_size(RONDO_KERNEL_WIDTH), aligned(1), may_alias));

RONDO_INLINE Raw load(const uint8_t* p) { return *reinterpret_cast<const RawUnaligned*>(p); }
RONDO_INLINE void store(uint8_t* p, Raw v) { *reinterpret_cast<RawUnaligned*>(p) = v; }

#if RONDO_KERNEL_WIDTH == 64

RONDO_INLINE __mmask64 first_bytes(uint64_t n) { return _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(n)); }
// The first n bytes, 1 <= n < kWidth, the rest zero; accesses no byte outside.
RONDO_INLINE Raw load_partial(const uint8_t* p, uint64_t n) {
  return reinterpret_cast<Raw>(_mm512_maskz_loadu_epi8(first_bytes(n), p));
}
RONDO_INLINE void store_partial(uint8_t* p, Raw v, uint64_t n) {
  _mm512_mask_storeu_epi8(p, first_bytes(n), reinterpret_cast<__m512i>(v));
}

#else

template <class T>
RONDO_INLINE uint64_t read(const uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
RONDO_INLINE void write(uint8_t* p, uint64_t bits) {
  const T value = static_cast<T>(bits);
  __builtin_memcpy(p, &value, sizeof(T));
}
// 16 bytes as two words, the lower address first.
struct Half16 {
  uint64_t lo, hi;
};

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
// Two overlapping reads cover every length between one and two of their size: no loop and no store-forwarding stall.
RONDO_INLINE Half16 load_partial16(const uint8_t* p, uint64_t n) {
  if (n >= 8) {
    const uint32_t half_shift = static_cast<uint32_t>(4 * (16 - n));  // in two shifts: one by 64 is undefined
    return {read<uint64_t>(p), (read<uint64_t>(p + n - 8) >> half_shift) >> half_shift};
  }
  if (n >= 4) return {read<uint32_t>(p) | read<uint32_t>(p + n - 4) << (8 * (n - 4)), 0};
  if (n == 0) return {0, 0};
  return {read<uint8_t>(p) | read<uint8_t>(p + n / 2) << (8 * (n / 2)) | read<uint8_t>(p + n - 1) << (8 * (n - 1)), 0};
}
RONDO_INLINE void store_partial16(uint8_t* p, Half16 v, uint64_t n) {
  if (n >= 8) {
    const uint32_t half_shift = static_cast<uint32_t>(4 * (16 - n));
    write<uint64_t>(p, v.lo);
    write<uint64_t>(p + n - 8, n == 8 ? v.lo : (v.lo >> (8 * (n - 8))) | ((v.hi << half_shift) << half_shift));
  } else if (n >= 4) {
    write<uint32_t>(p, v.lo);
    write<uint32_t>(p + n - 4, v.lo >> (8 * (n - 4)));
  } else if (n != 0) {
    write<uint8_t>(p, v.lo);
    write<uint8_t>(p + n / 2, v.lo >> (8 * (n / 2)));
    write<uint8_t>(p + n - 1, v.lo >> (8 * (n - 1)));
  }
}
#else
RONDO_INLINE Half16 load_partial16(const uint8_t* p, uint64_t n) {
  Half16 v = {0, 0};
  __builtin_memcpy(&v, p, n);
  return v;
}
RONDO_INLINE void store_partial16(uint8_t* p, Half16 v, uint64_t n) { __builtin_memcpy(p, &v, n); }
#endif

// The first n bytes, 1 <= n < kWidth, the rest zero; accesses no byte outside.
RONDO_INLINE Raw load_partial(const uint8_t* p, uint64_t n) {
  typedef uint64_t Words __attribute__((vector_size(RONDO_KERNEL_WIDTH)));
#if RONDO_KERNEL_WIDTH == 32
  if (n >= 16) {
    const Half16 tail = load_partial16(p + 16, n - 16);
    return reinterpret_cast<Raw>(Words{read<uint64_t>(p), read<uint64_t>(p + 8), tail.lo, tail.hi});
  }
  const Half16 v = load_partial16(p, n);
  return reinterpret_cast<Raw>(Words{v.lo, v.hi, 0, 0});
#else
  const Half16 v = load_partial16(p, n);
  return reinterpret_cast<Raw>(Words{v.lo, v.hi});
#endif
}
RONDO_INLINE void store_partial(uint8_t* p, Raw v, uint64_t n) {
  typedef uint64_t Words __attribute__((vector_size(RONDO_KERNEL_WIDTH)));
  const Words words = reinterpret_cast<Words>(v);
#if RONDO_KERNEL_WIDTH == 32
  if (n >= 16) {
    write<uint64_t>(p, words[0]);
    write<uint64_t>(p + 8, words[1]);
    store_partial16(p + 16, {words[2], words[3]}, n - 16);
    return;
  }
#endif
  store_partial16(p, {words[0], words[1]}, n);
}

#endif  // RONDO_KERNEL_WIDTH == 64

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
