// Units: the processing of 8 bytes of the wire at a time. The general form of every reduction in a kernel, used for
// messages whose lines carry flags (LL, LL128), mixed types, scaled operands, ragged ends and different alignments.
// reduce_copy.h has the direct form for whole, aligned buffers of one type.
//
// An Ops class implements one family of kernels:
//   Unit                                 accumulators of one unit
//   kLinesInFlight                       lines of LL and LL128 that a thread loads at once, as its registers permit
//   unit_elems(step)                     elements in a unit
//   load(step, s, first, n)              n elements of source s from `first` on; scaled and converted as in `step`
//   from_wire(step, words)               8 received bytes
//   join(a, b), finish(step, a)          the next operand; the division of an average
//   to_wire(step, a)                     8 bytes to send
//   store(step, d, first, n, a)          n elements to sink d
//
// Rounding is as in src/kernels/kernels.h (KernelArgs, MixedKernelArgs).
#pragma once

#include "kernels/cuda/elements.h"

namespace rondo::device_kernels {

/// The parameters of a step, equal for all its threads.
struct ReduceStep {
  static constexpr uint32_t kNoOwn = UINT32_MAX;
  const std::byte* const* src;
  std::byte* const* dst;
  uint32_t num_src, num_dst;
  uint64_t num_elems;  // for a copy: bytes
  uint32_t own;        // index of the rank's own source; kNoOwn
  bool scale_own;      // premul_sum: by `scale`
  uint32_t divide_by;  // avg; 0: no division
  uint64_t scale;      // the bits of one element of the accumulator type
  // Mixed types: source `own` (raw: every source) holds own_type, dst[0] (if has_dst) dst_type, all others wire_type.
  Dtype own_type, wire_type, dst_type;
  bool has_dst, result_as_wire, raw;
};

/// Accumulators of kWords words of a uniform type.
template <class E, int kWords>
struct Accumulators {
  static constexpr int kElems = 4 * kWords / E::kBytes;
  typename E::Acc a[kElems];
};

/// One type everywhere.
template <Dtype kDtype, Op kOp>
struct UniformOps {
  using E = Element<kDtype>;
  using Acc = typename E::Acc;
  using Unit = Accumulators<E, 2>;
  static constexpr bool kMixed = false;
  static constexpr int kBytes = E::kBytes;
  static constexpr bool kIsFp8 = kBytes == 1 && std::is_same_v<Acc, float>;
  static constexpr uint32_t kLinesInFlight = kBytes == 1 ? 1 : 2;

  template <int kWords>
  static RONDO_HOST_DEVICE_INLINE Accumulators<E, kWords> widen(const Words<kWords>& v) {
    Accumulators<E, kWords> r;
    if constexpr (kIsFp8) {
      RONDO_UNROLL
      for (int w = 0; w < kWords; ++w) E::widen_word(v.w[w], r.a + 4 * w);
    } else {
      RONDO_UNROLL
      for (int i = 0; i < r.kElems; ++i) r.a[i] = E::widen(get_element<kBytes>(v, i));
    }
    return r;
  }
  template <int kWords>
  static RONDO_HOST_DEVICE_INLINE Words<kWords> narrow(const Accumulators<E, kWords>& v) {
    Words<kWords> r{};
    if constexpr (kIsFp8) {
      RONDO_UNROLL
      for (int w = 0; w < kWords; ++w) r.w[w] = E::narrow_word(v.a + 4 * w);
    } else {
      RONDO_UNROLL
      for (int i = 0; i < v.kElems; ++i) put_element<kBytes>(r, i, E::narrow(v.a[i]));
    }
    return r;
  }
  template <int kWords>
  static RONDO_HOST_DEVICE_INLINE void join(Accumulators<E, kWords>& a, const Accumulators<E, kWords>& b) {
    RONDO_UNROLL
    for (int i = 0; i < a.kElems; ++i) a.a[i] = joined<kOp>(a.a[i], b.a[i]);
  }
  template <int kWords>
  static RONDO_HOST_DEVICE_INLINE void finish(const ReduceStep& step, Accumulators<E, kWords>& a) {
    if constexpr (kOp == Op::kSum) {
      if (step.divide_by == 0) return;
      RONDO_UNROLL
      for (int i = 0; i < a.kElems; ++i) a.a[i] = divided(a.a[i], step.divide_by);
    }
  }

  static RONDO_HOST_DEVICE_INLINE uint32_t unit_elems(const ReduceStep&) { return 8 / kBytes; }
  static RONDO_HOST_DEVICE_INLINE Unit load(const ReduceStep& step, uint32_t s, uint64_t first, uint32_t n) {
    Unit u = widen(load_elements<kBytes>(step.src[s] + first * kBytes, n));
    if constexpr (kOp == Op::kSum) {
      if (step.scale_own && s == step.own) {
        RONDO_UNROLL
        for (int i = 0; i < u.kElems; ++i) u.a[i] = multiplied(u.a[i], scale_of(step));
      }
    }
    return u;
  }
  static RONDO_HOST_DEVICE_INLINE Unit from_wire(const ReduceStep&, const Words<2>& v) { return widen(v); }
  static RONDO_HOST_DEVICE_INLINE Words<2> to_wire(const ReduceStep&, const Unit& u) { return narrow(u); }
  static RONDO_HOST_DEVICE_INLINE void store(const ReduceStep& step, uint32_t d, uint64_t first, uint32_t n,
                                             const Unit& u) {
    store_elements<kBytes>(step.dst[d] + first * kBytes, narrow(u), n);
  }

  /// The scale in the accumulator type, from one element of the type itself.
  static RONDO_HOST_DEVICE_INLINE uint64_t scale_from_element(const std::byte* p, Dtype) {
    return std::bit_cast<Unsigned<sizeof(Acc)>>(E::widen(load_data<Unsigned<kBytes>>(p)));
  }

 private:
  static RONDO_HOST_DEVICE_INLINE Acc scale_of(const ReduceStep& step) {
    return std::bit_cast<Acc>(static_cast<Unsigned<sizeof(Acc)>>(step.scale));
  }
};

/// Copies bytes unchanged; one source.
struct BytesOps {
  using Unit = Words<2>;
  static constexpr bool kMixed = false;
  static constexpr uint32_t kLinesInFlight = 4;

  static RONDO_HOST_DEVICE_INLINE uint32_t unit_elems(const ReduceStep&) { return 8; }
  static RONDO_HOST_DEVICE_INLINE Unit load(const ReduceStep& step, uint32_t s, uint64_t first, uint32_t n) {
    const std::byte* p = step.src[s] + first;
    if (n == 8 && !is_aligned(p, 8) && is_aligned(p, 4)) return {{load_data<uint32_t>(p), load_data<uint32_t>(p + 4)}};
    return load_elements<1>(p, n);
  }
  static RONDO_HOST_DEVICE_INLINE Unit from_wire(const ReduceStep&, const Words<2>& v) { return v; }
  static RONDO_HOST_DEVICE_INLINE void join(Unit&, const Unit&) {}
  static RONDO_HOST_DEVICE_INLINE void finish(const ReduceStep&, Unit&) {}
  static RONDO_HOST_DEVICE_INLINE Words<2> to_wire(const ReduceStep&, const Unit& u) { return u; }
  static RONDO_HOST_DEVICE_INLINE void store(const ReduceStep& step, uint32_t d, uint64_t first, uint32_t n,
                                             const Unit& u) {
    std::byte* p = step.dst[d] + first;
    if (n == 8 && !is_aligned(p, 8) && is_aligned(p, 4)) {
      store_data(p, u.w[0]);
      store_data(p + 4, u.w[1]);
      return;
    }
    store_elements<1>(p, u, n);
  }
  static RONDO_HOST_DEVICE_INLINE uint64_t scale_from_element(const std::byte*, Dtype) { return 0; }
};

}  // namespace rondo::device_kernels
