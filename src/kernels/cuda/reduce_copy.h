// One thread's part of a reduction or copy of plain memory by many threads.
//
//     |  head  |   vectors of 16 bytes, kUnroll of them in flight in each thread   |  tail  |
//      units     512 threads: 64 KiB for 2 sources and for copies, else 32 KiB       units
//                (half of it for 8-bit types, except copies)
//
// Vectors are used if all pointers have the same offset modulo 16 bytes. Units (units.h) handle the ends, and
// everything if the offsets differ. Neighbouring threads take neighbouring vectors. All loads of a vector precede its
// stores, and one thread does both; a sink may therefore be a source (same first element).
//
// Sources are combined from left to right in the accumulator type and rounded once for each sink.
#pragma once

#include <type_traits>

#include "kernels/cuda/mixed_units.h"
#include "kernels/cuda/units.h"

namespace rondo::device_kernels {

/// Thread `index` of `count` cooperating threads.
struct Threads {
  uint32_t index, count;
};

/// Elements first .. end - 1, unit by unit.
template <class Ops>
RONDO_HOST_DEVICE_INLINE void unit_pass(const ReduceStep& step, uint64_t first, uint64_t end, Threads threads) {
  const uint32_t per = Ops::unit_elems(step);
  RONDO_NO_UNROLL
  for (uint64_t e = first + uint64_t{threads.index} * per; e < end; e += uint64_t{threads.count} * per) {
    const uint32_t n = static_cast<uint32_t>(end - e < per ? end - e : per);
    typename Ops::Unit acc = Ops::load(step, 0, e, n);
    RONDO_NO_UNROLL
    for (uint32_t s = 1; s < step.num_src; ++s) Ops::join(acc, Ops::load(step, s, e, n));
    Ops::finish(step, acc);
    RONDO_NO_UNROLL
    for (uint32_t d = 0; d < step.num_dst; ++d) Ops::store(step, d, e, n, acc);
  }
}

/// Bytes up to the first place where all pointers are aligned to `align`; `none` if there is no such place.
RONDO_HOST_DEVICE_INLINE uint64_t bytes_to_alignment(const ReduceStep& step, uint32_t align, uint64_t none) {
  const uintptr_t place = reinterpret_cast<uintptr_t>(step.src[0]);
  uintptr_t differ = 0;
  for (uint32_t s = 1; s < step.num_src; ++s) differ |= reinterpret_cast<uintptr_t>(step.src[s]) ^ place;
  for (uint32_t d = 0; d < step.num_dst; ++d) differ |= reinterpret_cast<uintptr_t>(step.dst[d]) ^ place;
  return (differ & (align - 1)) != 0 ? none : (0 - place) & (align - 1);
}

// kUnroll vectors from `at` on, `stride` bytes apart; kPartial: only those before `end`. kSrc, kDst: number of sources
// and sinks; 0: any number, from the step's tables.
template <class Ops, int kSrc, int kDst, int kUnroll, bool kPartial>
RONDO_HOST_DEVICE_INLINE void reduce_vectors(const ReduceStep& step,
                                             const std::byte* const (&src)[kSrc == 0 ? 1 : kSrc],
                                             std::byte* const (&dst)[kDst == 0 ? 1 : kDst], uint64_t at,
                                             uint64_t stride, uint64_t end) {
  using Vector = Words<4>;
  Accumulators<typename Ops::E, 4> acc[kUnroll];
  const uint32_t num_src = kSrc != 0 ? kSrc : step.num_src, num_dst = kDst != 0 ? kDst : step.num_dst;
  const auto load = [&](const std::byte* p, Vector(&x)[kUnroll]) {
    RONDO_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      x[u] = !kPartial || at + u * stride < end ? load_data<Vector>(p + at + u * stride) : Vector{};
  };
  const auto store = [&](std::byte* p, const Vector(&x)[kUnroll]) {
    RONDO_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (!kPartial || at + u * stride < end) store_data(p + at + u * stride, x[u]);
  };
  Vector x[kUnroll], y[kUnroll];
  load(kSrc == 0 ? step.src[0] : src[0], x);
  if constexpr (kSrc == 2) load(src[1], y);  // before the first addition
  RONDO_UNROLL
  for (int u = 0; u < kUnroll; ++u) acc[u] = Ops::widen(x[u]);
  RONDO_NO_UNROLL
  for (uint32_t s = 1; s < num_src; ++s) {
    if constexpr (kSrc != 2) load(step.src[s], y);
    RONDO_UNROLL
    for (int u = 0; u < kUnroll; ++u) Ops::join(acc[u], Ops::widen(y[u]));
  }
  RONDO_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    Ops::finish(step, acc[u]);
    x[u] = Ops::narrow(acc[u]);
  }
  if constexpr (kDst != 0) {
    RONDO_UNROLL
    for (int d = 0; d < kDst; ++d) store(dst[d], x);
  } else {
    RONDO_NO_UNROLL
    for (uint32_t d = 0; d < num_dst; ++d) store(step.dst[d], x);
  }
}

template <class Ops, int kSrc, int kDst, int kUnroll>
RONDO_HOST_DEVICE_INLINE void vector_pass(const ReduceStep& step, uint64_t first_byte, uint64_t end_byte,
                                          Threads threads) {
  const std::byte* src[kSrc == 0 ? 1 : kSrc];
  std::byte* dst[kDst == 0 ? 1 : kDst];
  RONDO_UNROLL
  for (int s = 0; s < (kSrc == 0 ? 1 : kSrc); ++s) src[s] = step.src[s];
  RONDO_UNROLL
  for (int d = 0; d < (kDst == 0 ? 1 : kDst); ++d) dst[d] = step.dst[d];
  const uint64_t stride = uint64_t{threads.count} * 16;
  uint64_t at = first_byte + uint64_t{threads.index} * 16;
  RONDO_NO_UNROLL
  for (; at + (kUnroll - 1) * stride < end_byte; at += kUnroll * stride)
    reduce_vectors<Ops, kSrc, kDst, kUnroll, false>(step, src, dst, at, stride, end_byte);
  if (at < end_byte) reduce_vectors<Ops, kSrc, kDst, kUnroll, true>(step, src, dst, at, stride, end_byte);
}

/// A copy of bytes: vectors of T if the pointers' alignments match.
template <class T, int kDst, int kUnroll>
RONDO_HOST_DEVICE_INLINE void copy_pass(const ReduceStep& step, uint64_t first, uint64_t end, Threads threads) {
  const std::byte* src = step.src[0];
  std::byte* const dst0 = step.dst[0];
  std::byte* const dst1 = kDst == 2 ? step.dst[1] : nullptr;
  const uint64_t stride = uint64_t{threads.count} * sizeof(T);
  // kUnroll vectors from `at` on; kPartial: only those before `end`.
  auto some = [&](uint64_t at, auto partial) {
    constexpr bool kPartial = decltype(partial)::value;
    T x[kUnroll];
    RONDO_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      x[u] = !kPartial || at + u * stride < end ? load_data<T>(src + at + u * stride) : T{};
    const auto store = [&](std::byte* p) {
      RONDO_UNROLL
      for (int u = 0; u < kUnroll; ++u)
        if (!kPartial || at + u * stride < end) store_data(p + at + u * stride, x[u]);
    };
    store(dst0);
    if constexpr (kDst == 2) {
      store(dst1);
    } else if constexpr (kDst == 0) {
      RONDO_NO_UNROLL
      for (uint32_t d = 1; d < step.num_dst; ++d) store(step.dst[d]);
    }
  };
  uint64_t at = first + uint64_t{threads.index} * sizeof(T);
  RONDO_NO_UNROLL
  for (; at + (kUnroll - 1) * stride < end; at += kUnroll * stride) some(at, std::false_type{});
  if constexpr (kUnroll > 1)
    if (at < end) some(at, std::true_type{});
}

/// Copies step.num_elems bytes of source 0 to all sinks.
RONDO_HOST_DEVICE_INLINE void copy_bytes(const ReduceStep& step, Threads threads) {
  const uint64_t bytes = step.num_elems;
  const uint32_t num_dst = step.num_dst;
  if (num_dst == 0 || bytes == 0 || (num_dst == 1 && step.dst[0] == step.src[0])) return;
  uint64_t first = bytes_to_alignment(step, 16, bytes), end = first;
  if (first < bytes) {
    end = first + ((bytes - first) & ~uint64_t{15});
    if (num_dst == 1) copy_pass<Words<4>, 1, 8>(step, first, end, threads);
    else if (num_dst == 2) copy_pass<Words<4>, 2, 8>(step, first, end, threads);
    else copy_pass<Words<4>, 0, 8>(step, first, end, threads);
  } else {
    first = bytes_to_alignment(step, 4, bytes);
    if (first > bytes) first = bytes;
    end = first + ((bytes - first) & ~uint64_t{3});
    if (first < end) copy_pass<uint32_t, 0, 4>(step, first, end, threads);
  }
  copy_pass<uint8_t, 0, 1>(step, 0, first < bytes ? first : bytes, threads);
  if (first < bytes) copy_pass<uint8_t, 0, 1>(step, end, bytes, threads);
}

/// A reduction, or a copy that scales, divides or converts.
template <class Ops>
RONDO_HOST_DEVICE_INLINE void reduce_copy(const ReduceStep& step, Threads threads) {
  const uint32_t num_src = step.num_src, num_dst = step.num_dst;
  if (num_dst == 0) return;
  uint64_t begin = 0, end = 0;  // elements processed as vectors
  if constexpr (!Ops::kMixed) {
    constexpr int kBytes = Ops::kBytes, kUnroll = kBytes == 1 ? 2 : 4;
    const uint64_t bytes = step.num_elems * kBytes;
    const uint64_t head = step.scale_own ? bytes : bytes_to_alignment(step, 16, bytes);
    if (head < bytes && head % kBytes == 0) {
      const uint64_t first = head, last = head + ((bytes - head) & ~uint64_t{15});
      if (num_src == 2 && num_dst == 1) vector_pass<Ops, 2, 1, kUnroll>(step, first, last, threads);
      else if (num_src == 2 && num_dst == 2) vector_pass<Ops, 2, 2, kUnroll>(step, first, last, threads);
      else vector_pass<Ops, 0, 0, kUnroll>(step, first, last, threads);
      begin = first / kBytes;
      end = last / kBytes;
    }
  }
  // The elements before and after the vectors.
  RONDO_NO_UNROLL
  for (int part = 0; part < 2; ++part)
    unit_pass<Ops>(step, part == 0 ? 0 : end, part == 0 ? begin : step.num_elems, threads);
}

}  // namespace rondo::device_kernels
