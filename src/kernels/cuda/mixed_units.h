// Units of mixed type rows: input, wire and output of {float, bfloat16, half}, fp8 on the wire too, accumulated in
// fp32. The types are known only at run time: one kernel per op serves all 45 rows, at the price of a branch that all
// threads take in the same direction.
//
// Every operand is rounded to the wire type, the rank's own as if it had been sent; otherwise as MixedKernelArgs
// (src/kernels/kernels.h). NaN is stored as the canonical one.
#pragma once

#include "kernels/cuda/units.h"

namespace rondo::device_kernels {

RONDO_HOST_DEVICE_INLINE uint32_t mixed_bytes(Dtype t) {
  return t == Dtype::kFloat32 ? 4 : t == Dtype::kBfloat16 || t == Dtype::kFloat16 ? 2 : 1;
}

/// Calls f with the element class of t.
template <class F>
RONDO_HOST_DEVICE_INLINE void with_element(Dtype t, F f) {
  switch (t) {
    case Dtype::kBfloat16: return f(Bf16Element{});
    case Dtype::kFloat16: return f(Fp16Element{});
    case Dtype::kFloat8E4m3: return f(Element<Dtype::kFloat8E4m3>{});
    case Dtype::kFloat8E5m2: return f(Element<Dtype::kFloat8E5m2>{});
    default: return f(Fp32Element{});
  }
}

template <Op kOp>
struct MixedOps {
  static constexpr bool kMixed = true;
  static constexpr uint32_t kLinesInFlight = 1;
  struct Unit {
    float a[8];  // the unit's elements come first
  };

  static RONDO_HOST_DEVICE_INLINE uint32_t unit_elems(const ReduceStep& step) {
    return 8 / mixed_bytes(step.wire_type);
  }
  static RONDO_HOST_DEVICE_INLINE Unit load(const ReduceStep& step, uint32_t s, uint64_t first, uint32_t n) {
    const bool own = step.raw || s == step.own;
    Unit u = load_typed(own ? step.own_type : step.wire_type, step.src[s], first, n);
    if (!own) return u;
    if (step.scale_own) {
      const float scale = float_of(static_cast<uint32_t>(step.scale));
      RONDO_UNROLL
      for (int i = 0; i < 8; ++i) u.a[i] = multiplied(u.a[i], scale);
    }
    round(step.wire_type, u);
    return u;
  }
  static RONDO_HOST_DEVICE_INLINE Unit from_wire(const ReduceStep& step, const Words<2>& v) {
    Unit u{};
    with_element(step.wire_type, [&](auto e) {
      using E = decltype(e);
      RONDO_UNROLL
      for (int i = 0; i < 8 / E::kBytes; ++i) u.a[i] = E::widen(get_element<E::kBytes>(v, i));
    });
    return u;
  }
  static RONDO_HOST_DEVICE_INLINE void join(Unit& a, const Unit& b) {
    RONDO_UNROLL
    for (int i = 0; i < 8; ++i) a.a[i] = joined<kOp>(a.a[i], b.a[i]);
  }
  static RONDO_HOST_DEVICE_INLINE void finish(const ReduceStep& step, Unit& u) {
    if constexpr (kOp == Op::kSum) {
      if (step.divide_by == 0) return;
      RONDO_UNROLL
      for (int i = 0; i < 8; ++i) u.a[i] = divided(u.a[i], step.divide_by);
    }
  }
  static RONDO_HOST_DEVICE_INLINE Words<2> to_wire(const ReduceStep& step, const Unit& u) {
    Words<2> v{};
    with_element(step.wire_type, [&](auto e) {
      using E = decltype(e);
      RONDO_UNROLL
      for (int i = 0; i < 8 / E::kBytes; ++i) put_element<E::kBytes>(v, i, E::narrow(u.a[i]));
    });
    return v;
  }
  static RONDO_HOST_DEVICE_INLINE void store(const ReduceStep& step, uint32_t d, uint64_t first, uint32_t n,
                                             const Unit& u) {
    const bool result = step.has_dst && d == 0;
    Unit r = u;
    if (result && step.result_as_wire) round(step.wire_type, r);
    with_element(result ? step.dst_type : step.wire_type, [&](auto e) {
      using E = decltype(e);
      std::byte* p = step.dst[d] + first * E::kBytes;
      RONDO_UNROLL
      for (int i = 0; i < 8; ++i)
        if (static_cast<uint32_t>(i) < n) store_data(p + i * E::kBytes, E::narrow(r.a[i]));
    });
  }
  /// The scale in fp32, from one element of the input type.
  static RONDO_HOST_DEVICE_INLINE uint64_t scale_from_element(const std::byte* p, Dtype type) {
    return bits_of(load_typed(type, p, 0, 1).a[0]);
  }

 private:
  static RONDO_HOST_DEVICE_INLINE Unit load_typed(Dtype t, const std::byte* from, uint64_t first, uint32_t n) {
    Unit u{};
    with_element(t, [&](auto e) {
      using E = decltype(e);
      const std::byte* p = from + first * E::kBytes;
      RONDO_UNROLL
      for (int i = 0; i < 8; ++i)
        if (static_cast<uint32_t>(i) < n) u.a[i] = E::widen(load_data<Unsigned<E::kBytes>>(p + i * E::kBytes));
    });
    return u;
  }
  static RONDO_HOST_DEVICE_INLINE void round(Dtype t, Unit& u) {
    with_element(t, [&](auto e) {
      using E = decltype(e);
      RONDO_UNROLL
      for (int i = 0; i < 8; ++i) u.a[i] = E::widen(E::narrow(u.a[i]));
    });
  }
};

}  // namespace rondo::device_kernels
