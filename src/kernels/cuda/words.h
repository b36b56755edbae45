// Words: one load or store of a CUDA thread, 8 or 16 bytes as words of 32 bits. Elements of any type are extracted from
// registers by shifts.
//
// Host and device, like all of src/kernels/cuda: tests run the same code on host threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace rondo::device_kernels {

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t w[kWords];
};

RONDO_HOST_DEVICE_INLINE bool is_aligned(const void* p, uint32_t bytes) {
  return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0;
}

/// p is aligned to sizeof(T). A device faults if it is not, so a host thread does too.
template <class T>
RONDO_HOST_DEVICE_INLINE T load_aligned(const std::byte* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(p);
#else
  if (!is_aligned(p, sizeof(T))) __builtin_trap();
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
#endif
}
template <class T>
RONDO_HOST_DEVICE_INLINE void store_aligned(std::byte* p, const T& value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(p) = value;
#else
  if (!is_aligned(p, sizeof(T))) __builtin_trap();
  __builtin_memcpy(p, &value, sizeof(T));
#endif
}

/// The same for data of ranks, which are in global memory. The compiler cannot know this of a table's pointers.
template <class T>
RONDO_HOST_DEVICE_INLINE T load_data(const std::byte* p) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(p));
#endif
  return load_aligned<T>(p);
}
template <class T>
RONDO_HOST_DEVICE_INLINE void store_data(std::byte* p, const T& value) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(p));
#endif
  store_aligned(p, value);
}

RONDO_HOST_DEVICE_INLINE uint64_t to_u64(const Words<2>& v) { return v.w[0] | static_cast<uint64_t>(v.w[1]) << 32; }
RONDO_HOST_DEVICE_INLINE Words<2> to_words(uint64_t v) {
  return {{static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)}};
}

template <int kBytes>
using Unsigned =
    std::conditional_t<kBytes == 1, uint8_t,
                       std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

/// The bits of element i. Performance needs a constant i.
template <int kBytes, int kWords>
RONDO_HOST_DEVICE_INLINE Unsigned<kBytes> get_element(const Words<kWords>& v, int i) {
  if constexpr (kBytes == 8) {
    return v.w[2 * i] | static_cast<uint64_t>(v.w[2 * i + 1]) << 32;
  } else {
    constexpr int kPer = 4 / kBytes;
    return static_cast<Unsigned<kBytes>>(v.w[i / kPer] >> (8 * kBytes * (i % kPer)));
  }
}
/// Sets element i, whose bits must be zero.
template <int kBytes, int kWords>
RONDO_HOST_DEVICE_INLINE void put_element(Words<kWords>& v, int i, Unsigned<kBytes> code) {
  if constexpr (kBytes == 8) {
    v.w[2 * i] = static_cast<uint32_t>(code);
    v.w[2 * i + 1] = static_cast<uint32_t>(code >> 32);
  } else {
    constexpr int kPer = 4 / kBytes;
    v.w[i / kPer] |= static_cast<uint32_t>(code) << (8 * kBytes * (i % kPer));
  }
}

/// Loads the first n elements of kBytes into 8 bytes; the rest is zero. Needs only an element's alignment.
template <int kBytes>
RONDO_HOST_DEVICE_INLINE Words<2> load_elements(const std::byte* p, uint32_t n) {
  constexpr int kElems = 8 / kBytes;
  if (n >= kElems && is_aligned(p, 8)) return load_data<Words<2>>(p);
  Words<2> v{};
  RONDO_UNROLL
  for (int i = 0; i < kElems; ++i)
    if (static_cast<uint32_t>(i) < n) put_element<kBytes>(v, i, load_data<Unsigned<kBytes>>(p + i * kBytes));
  return v;
}
template <int kBytes>
RONDO_HOST_DEVICE_INLINE void store_elements(std::byte* p, const Words<2>& v, uint32_t n) {
  constexpr int kElems = 8 / kBytes;
  if (n >= kElems && is_aligned(p, 8)) return store_data(p, v);
  RONDO_UNROLL
  for (int i = 0; i < kElems; ++i)
    if (static_cast<uint32_t>(i) < n) store_data(p + i * kBytes, get_element<kBytes>(v, i));
}

}  // namespace rondo::device_kernels
