// The single pass over the data: each step combines a few vectors of all sources in registers, then writes all sinks.
// Included once per SIMD level; see vector.h and recipes.h.
//
//   |<- steps of kUnroll vectors ->|<- single vectors ->|<- tail: part of a vector ->|
//
// All loads of a step precede its first store; a sink may therefore be a source. The tail is one partial load and store
// of a vector, not a scalar loop: a call for a few elements is only a tail.
#pragma once

#include "kernels/inner/recipes.h"
#include "kernels/kernels.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

// A shape known at compile time keeps the pointers to its sources and sinks in registers. kNumSrc or kNumDst 0 means
// any number, read from the caller's tables at every step.
template <uint32_t kNumSrc, uint32_t kNumDst>
struct Shape {
  const uint8_t* src_[kNumSrc == 0 ? 1 : kNumSrc];
  uint8_t* dst_[kNumDst == 0 ? 1 : kNumDst];
  const KernelArgs& args;
  static constexpr bool kAnyNumSrc = kNumSrc == 0;

  explicit RONDO_INLINE Shape(const KernelArgs& a) : args(a) {
    for (uint32_t s = 0; s < kNumSrc; ++s) src_[s] = static_cast<const uint8_t*>(a.src[s]);
    for (uint32_t d = 0; d < kNumDst; ++d) dst_[d] = static_cast<uint8_t*>(a.dst[d]);
  }
  RONDO_INLINE uint32_t num_src() const { return kNumSrc != 0 ? kNumSrc : args.num_src; }
  RONDO_INLINE uint32_t num_dst() const { return kNumDst != 0 ? kNumDst : args.num_dst; }
  RONDO_INLINE const uint8_t* src(uint32_t s) const {
    if constexpr (kNumSrc != 0) return src_[s];
    return static_cast<const uint8_t*>(args.src[s]);
  }
  RONDO_INLINE uint8_t* dst(uint32_t d) const {
    if constexpr (kNumDst != 0) return dst_[d];
    return static_cast<uint8_t*>(args.dst[d]);
  }
};

// Processors prefetch about 32 streams by themselves. Beyond that a step prefetches for a later step of the same
// source. One core, 64 sources of 4 MiB of bfloat16: 6 GB/s without, 14 GB/s with (kernels_bench, 64x1/4194304).
constexpr uint32_t kFollowedSources = 16;
constexpr uint64_t kPrefetchAheadBytes = 512;

template <int kUnroll, class S>
RONDO_INLINE void prefetch(const S& shape, const uint8_t* p) {
  if constexpr (S::kAnyNumSrc) {
    if (shape.num_src() <= kFollowedSources) return;
    for (uint64_t b = 0; b < kUnroll * kWidth; b += 64) __builtin_prefetch(p + kPrefetchAheadBytes + b);
  }
}

template <int kUnroll, class R, class S>
RONDO_INLINE void step(const R& recipe, const S& shape, uint64_t offset) {
  typename R::Acc acc[kUnroll];
  const uint8_t* p = shape.src(0) + offset;
#pragma GCC unroll 8
  for (int u = 0; u < kUnroll; ++u) acc[u] = recipe.first(load(p + u * kWidth), 0);
  for (uint32_t s = 1; s < shape.num_src(); ++s) {
    p = shape.src(s) + offset;
    prefetch<kUnroll>(shape, p);
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) acc[u] = recipe.join(acc[u], load(p + u * kWidth), s);
  }
  Raw out[kUnroll];
#pragma GCC unroll 8
  for (int u = 0; u < kUnroll; ++u) out[u] = recipe.last(acc[u]);
  for (uint32_t d = 0; d < shape.num_dst(); ++d) {
    uint8_t* q = shape.dst(d) + offset;
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) store(q + u * kWidth, out[u]);
  }
}

// The num_bytes from offset on, 1 <= num_bytes < kWidth.
template <class R, class S>
RONDO_INLINE void partial_step(const R& recipe, const S& shape, uint64_t offset, uint64_t num_bytes) {
  typename R::Acc acc = recipe.first(load_partial(shape.src(0) + offset, num_bytes), 0);
  for (uint32_t s = 1; s < shape.num_src(); ++s) {
    acc = recipe.join(acc, load_partial(shape.src(s) + offset, num_bytes), s);
  }
  const Raw out = recipe.last(acc);
  for (uint32_t d = 0; d < shape.num_dst(); ++d) store_partial(shape.dst(d) + offset, out, num_bytes);
}

template <uint32_t kNumSrc, uint32_t kNumDst, class R>
__attribute__((noinline)) void pass(const KernelArgs& args, uint64_t num_bytes, R recipe) {
  const Shape<kNumSrc, kNumDst> shape(args);
  uint64_t offset = 0;
  constexpr uint64_t kStep = R::kUnroll * kWidth;
  for (; num_bytes - offset >= kStep; offset += kStep) step<R::kUnroll>(recipe, shape, offset);
  if constexpr (R::kUnroll > 1) {
    for (; num_bytes - offset >= kWidth; offset += kWidth) step<1>(recipe, shape, offset);
  }
  if (offset != num_bytes) partial_step(recipe, shape, offset, num_bytes - offset);
}

// Shapes of reductions: rings and trees have two sources, with one sink (keep or send) or two (keep and send). If
// conversion dominates (kUnroll 1), pointers in registers bring nothing.
template <class R>
RONDO_INLINE void run(const KernelArgs& args, uint32_t elem_bytes, const R& recipe) {
  const uint64_t num_bytes = args.num_elems * elem_bytes;
  if constexpr (R::kUnroll > 1) {
    if (args.num_src == 2 && args.num_dst == 1) return pass<2, 1>(args, num_bytes, recipe);
    if (args.num_src == 2 && args.num_dst == 2) return pass<2, 2>(args, num_bytes, recipe);
  }
  pass<0, 0>(args, num_bytes, recipe);
}
// For rarer reductions, whose cost is not in the pointer tables.
template <class R>
RONDO_INLINE void run_any_shape(const KernelArgs& args, uint32_t elem_bytes, const R& recipe) {
  pass<0, 0>(args, args.num_elems * elem_bytes, recipe);
}

struct Identity {
  using Acc = Raw;
  static constexpr int kUnroll = 4;
  RONDO_INLINE Acc first(Raw x, uint32_t) const { return x; }
  RONDO_INLINE Acc join(Acc a, Raw, uint32_t) const { return a; }
  RONDO_INLINE Raw last(Acc a) const { return a; }
};

__attribute__((noinline)) void copy_bytes(const KernelArgs& args, uint64_t num_bytes) {
  if (num_bytes == 0) return;
  if (args.num_dst == 2) return pass<1, 2>(args, num_bytes, Identity{});
  if (args.num_dst != 1) return pass<1, 0>(args, num_bytes, Identity{});
  if (args.dst[0] == args.src[0]) return;
  __builtin_memcpy(args.dst[0], args.src[0], num_bytes);  // the C library has this processor's best copy
}

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
