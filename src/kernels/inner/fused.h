// Copies and sums of mixed rows in one pass through registers, for the most common training rows: bf16 or fp16 on the
// wire, fp32 or the wire's type in the caller's buffers. Included once per SIMD level; see vector.h.
//
// A caller's buffer in the wire's type counts as one more wire operand (unless it is scaled) and one more send; mixed.h
// rewrites the call accordingly. Three kinds of sinks remain: sends; dst in fp32, from the accumulator; sends (possibly
// none) and dst in fp32 with the sent values. There is a loop for each kind, with and without an own fp32 operand, to
// keep its values in registers. Raw sources (all fp32) have loops of their own.
#pragma once

#include "kernels/inner/pairs.h"
#include "kernels/kernels.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

RONDO_INLINE bool is_power_of_two(uint32_t n) { return (n & (n - 1)) == 0; }

enum class FusedSinks { kSends, kDst, kBoth };

// The decisions made once per call. Sources are src[0 .. num_before), own, src[own + 1 .. num_src).
struct FusedCall {
  const void* const* src;
  void* const* dst;
  uint32_t num_before, num_src, num_dst;
  float scale = 1, divisor = 1;  // if `times`: a factor
  bool scales, times, over;

  explicit RONDO_INLINE FusedCall(const MixedKernelArgs& m)
      : src(m.args.src), dst(m.args.dst), num_before(m.args.own), num_src(m.args.num_src), num_dst(m.args.num_dst) {
    const uint32_t n = m.args.divide_by;
    scales = m.args.own < num_src && m.args.premul != nullptr;
    if (scales) __builtin_memcpy(&scale, m.args.premul, sizeof(scale));
    times = n != 0 && is_power_of_two(n);
    over = n != 0 && !times;
    divisor = times ? 1 / static_cast<float>(n) : static_cast<float>(n);
  }
};

// Addresses of element i, of codes and of fp32.
RONDO_INLINE const uint8_t* codes_at(const void* p, uint64_t i) { return static_cast<const uint8_t*>(p) + i * 2; }
RONDO_INLINE uint8_t* codes_at(void* p, uint64_t i) { return static_cast<uint8_t*>(p) + i * 2; }
RONDO_INLINE const uint8_t* floats_at(const void* p, uint64_t i) { return static_cast<const uint8_t*>(p) + i * 4; }
RONDO_INLINE uint8_t* floats_at(void* p, uint64_t i) { return static_cast<uint8_t*>(p) + i * 4; }

// AVX-512 passes prefetch the reads and writes of a later step, because they are bound by the second-level cache and by
// lines that the peer's core holds: a staged exchange of 256 KiB to 1 MiB takes 7 to 10 % less. Raw sources are not
// prefetched: they are in the near caches or far from them.
constexpr uint64_t kCodesAheadBytes = 512, kFloatsAheadBytes = 1024;

// kUnroll pairs from element i on; or (kPartial) the first `rest` elements of one.
template <class W, int kUnroll, bool kPartial>
struct Step {
  uint64_t i, rest;
  using Code = typename W::Code;

  template <int kWrite>
  static RONDO_INLINE void ask_ahead(const uint8_t* pair) {
    __builtin_prefetch(pair + kFloatsAheadBytes, kWrite);
    __builtin_prefetch(pair + kFloatsAheadBytes + kWidth, kWrite);
  }
  RONDO_INLINE Code code(const void* p, int u) const {
    if constexpr (kPartial) return load_some_codes<W>(codes_at(p, i), rest);
    if constexpr (W::kAsksAhead) __builtin_prefetch(codes_at(p, i + u * kPairElems) + kCodesAheadBytes);
    return W::load_code(codes_at(p, i + u * kPairElems));
  }
  RONDO_INLINE Pair floats(const void* p, int u) const {
    if constexpr (kPartial) return load_some_floats<W>(floats_at(p, i), rest);
    if constexpr (W::kAsksAhead) ask_ahead<0>(floats_at(p, i + u * kPairElems));
    return W::load_floats(floats_at(p, i + u * kPairElems));
  }
  RONDO_INLINE void send(void* const* dst, uint32_t first, uint32_t last, const Code* sent) const {
    for (uint32_t d = first; d < last; ++d) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) {
        if constexpr (kPartial) store_some_pair_codes<W>(codes_at(dst[d], i), sent[u], rest);
        else W::store_code(codes_at(dst[d], i + u * kPairElems), sent[u]);
      }
    }
  }
  RONDO_INLINE void keep(void* p, const Pair* kept) const {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      if constexpr (kPartial) {
        store_some_floats<W>(floats_at(p, i), kept[u], rest);
      } else {
        if constexpr (W::kAsksAhead) ask_ahead<1>(floats_at(p, i + u * kPairElems));
        W::store_floats(floats_at(p, i + u * kPairElems), kept[u]);
      }
    }
  }
  // Stores codes with canonical NaN to the sends and, widened, to dst[0].
  template <FusedSinks kSinks>
  RONDO_INLINE void write_codes(const FusedCall& call, const Code* sent) const {
    if constexpr (kSinks != FusedSinks::kDst) send(call.dst, kSinks == FusedSinks::kBoth ? 1 : 0, call.num_dst, sent);
    if constexpr (kSinks != FusedSinks::kSends) {
      Pair kept[kUnroll];
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) kept[u] = W::widen(sent[u]);
      keep(call.dst[0], kept);
    }
  }
  // The own operand, scaled but not yet rounded.
  RONDO_INLINE void load_own(const FusedCall& call, const void* p, Pair* x) const {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) x[u] = floats(p, u);
    if (!call.scales) return;
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) x[u] = x[u] * call.scale;
  }
  RONDO_INLINE void narrow(const Pair* x, Code* to) const {
    if (numbers_only<kUnroll>(x)) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) to[u] = W::template narrow<true>(x[u]);
    } else {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) to[u] = W::template narrow<false>(x[u]);
    }
  }
  RONDO_INLINE void round(Pair* x, bool numbers) const {
    if (numbers) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) x[u] = W::template round<true>(x[u]);
    } else {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) x[u] = W::template round<false>(x[u]);
    }
  }
  RONDO_INLINE void make_canonical(Pair* x) const {
    if (numbers_only<kUnroll>(x)) return;
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) x[u] = {{canonical(x[u].v[0]), canonical(x[u].v[1])}};
  }
  // Divides the sum and stores it to the sinks.
  template <FusedSinks kSinks>
  RONDO_INLINE void write_sum(const FusedCall& call, Pair* acc) const {
    if (call.times) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = acc[u] * call.divisor;
    } else if (call.over) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = acc[u] / call.divisor;
    }
    if constexpr (kSinks == FusedSinks::kDst) {
      make_canonical(acc);
      keep(call.dst[0], acc);
    } else {
      Code sent[kUnroll];
      narrow(acc, sent);
      write_codes<kSinks>(call, sent);
    }
  }
  RONDO_INLINE void add_wire(const FusedCall& call, uint32_t first, uint32_t last, Pair* acc) const {
    for (uint32_t s = first; s < last; ++s) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = acc[u] + W::widen(code(call.src[s], u));
    }
  }
};

template <FusedSinks kSinks, bool kOwn>
struct FusedCopy {
  // The own operand is rounded as for sending; a received operand is passed on.
  template <class W, int kUnroll, bool kPartial>
  static RONDO_INLINE void run(const FusedCall& call, const Step<W, kUnroll, kPartial>& step) {
    typename W::Code sent[kUnroll];
    if constexpr (kOwn) {
      Pair x[kUnroll];
      step.load_own(call, call.src[0], x);
      step.narrow(x, sent);
    } else {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) sent[u] = W::canonical(step.code(call.src[0], u));
    }
    step.template write_codes<kSinks>(call, sent);
  }
};

template <FusedSinks kSinks, bool kOwn>
struct FusedSum {
  template <class W, int kUnroll, bool kPartial>
  static RONDO_INLINE void run(const FusedCall& call, const Step<W, kUnroll, kPartial>& step) {
    Pair acc[kUnroll];
    if (!kOwn || call.num_before != 0) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = W::widen(step.code(call.src[0], u));
      step.add_wire(call, 1, kOwn ? call.num_before : call.num_src, acc);
    }
    if constexpr (kOwn) {
      Pair x[kUnroll];
      step.load_own(call, call.src[call.num_before], x);
      step.round(x, numbers_only<kUnroll>(x));
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = call.num_before != 0 ? acc[u] + x[u] : x[u];
      step.add_wire(call, call.num_before + 1, call.num_src, acc);
    }
    step.template write_sum<kSinks>(call, acc);
  }
};

// Raw sources: each is rounded to the wire type before it is added.
template <FusedSinks kSinks>
struct FusedRawSum {
  template <class W, int kUnroll, bool kPartial>
  static RONDO_INLINE void run(const FusedCall& call, const Step<W, kUnroll, kPartial>& step) {
    Pair acc[kUnroll];
    step.load_own(call, call.src[0], acc);
    step.round(acc, no_nan<kUnroll>(acc));
    for (uint32_t s = 1; s < call.num_src; ++s) {
      Pair x[kUnroll];
      step.load_own(call, call.src[s], x);
      step.round(x, no_nan<kUnroll>(x));
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) acc[u] = acc[u] + x[u];
    }
    step.template write_sum<kSinks>(call, acc);
  }
};

template <class W, class Body>
__attribute__((noinline)) void fused_pass(const MixedKernelArgs& m) {
  constexpr int kUnroll = 2;
  const FusedCall call(m);
  const uint64_t num_elems = m.args.num_elems;
  uint64_t i = 0;
  for (; num_elems - i >= kUnroll * kPairElems; i += kUnroll * kPairElems) {
    Body::run(call, Step<W, kUnroll, false>{i, 0});
  }
  for (; num_elems - i >= kPairElems; i += kPairElems) Body::run(call, Step<W, 1, false>{i, 0});
  if (i != num_elems) Body::run(call, Step<W, 1, true>{i, num_elems - i});
}

template <class W, template <FusedSinks, bool> class Body, FusedSinks kSinks>
RONDO_INLINE void fused_call(const MixedKernelArgs& m) {
  if (m.args.own < m.args.num_src) return fused_pass<W, Body<kSinks, true>>(m);
  fused_pass<W, Body<kSinks, false>>(m);
}
template <class W>
RONDO_INLINE void fused(const MixedKernelArgs& m) {
  if (m.args.num_src == 1 && m.args.divide_by == 0) {
    if (!m.has_dst) return fused_call<W, FusedCopy, FusedSinks::kSends>(m);
    return fused_call<W, FusedCopy, FusedSinks::kBoth>(m);
  }
  if (m.raw) {
    if (!m.has_dst) return fused_pass<W, FusedRawSum<FusedSinks::kSends>>(m);
    if (m.result_as_wire) return fused_pass<W, FusedRawSum<FusedSinks::kBoth>>(m);
    return fused_pass<InOrder<W>, FusedRawSum<FusedSinks::kDst>>(m);
  }
  if (!m.has_dst) return fused_call<W, FusedSum, FusedSinks::kSends>(m);
  if (m.result_as_wire) return fused_call<W, FusedSum, FusedSinks::kBoth>(m);
  fused_call<W, FusedSum, FusedSinks::kDst>(m);
}

// Runs the call if it is one of these; fp16 only if the processor can convert it.
RONDO_INLINE bool try_fused(const MixedKernelArgs& m) {
  if (m.args.num_src != 1 && (m.op == Op::kProd || m.op == Op::kMax || m.op == Op::kMin)) return false;
  if (m.args.own < m.args.num_src && m.own_type != Dtype::kFloat32) return false;
  if (m.has_dst && m.dst_type != Dtype::kFloat32) return false;
  const bool one_source = m.args.num_src == 1 && m.args.divide_by == 0;
  if (m.has_dst && !m.result_as_wire && !one_source && m.args.num_dst != 1) return false;
  if (m.wire == Dtype::kBfloat16) {
    fused<PairBf16>(m);
    return true;
  }
#if RONDO_KERNEL_WIDTH != 16
  if (m.wire == Dtype::kFloat16) {
    fused<PairFp16>(m);
    return true;
  }
#endif
  return false;
}

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
