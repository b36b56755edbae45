// Recipes: the operations of a reduction on one storage vector of each source. Included once per SIMD level.
//
// A recipe is a trivially copyable value with
//   Acc first(Raw x, uint32_t s)         the accumulator from source 0
//   Acc join(Acc a, Raw x, uint32_t s)   adds source s
//   Raw last(Acc a)                      the value for the sinks
//   kUnroll                              storage vectors per step, chosen to keep the accumulators in registers and to
//                                        hide the latency of an addition
// Lanes that a partial load filled with zeros are computed too, but never stored.
#pragma once

#include <type_traits>

#include "kernels/inner/formats.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

template <class F>
constexpr int unroll_of() {
  return sizeof(typename F::Acc) >= 4 * kWidth ? 1 : sizeof(typename F::Acc) == 2 * kWidth ? 2 : 4;
}

// Integers wrap: they are added and multiplied as unsigned numbers.
template <class T>
struct Wrapping {
  using Acc = Vec<T>;
  using Scalar = T;
  static RONDO_INLINE Acc widen(Raw x) { return reinterpret_cast<Acc>(x); }
  static RONDO_INLINE Raw narrow(Acc a) { return reinterpret_cast<Raw>(a); }
};

template <class F>
struct Sum {
  using Acc = typename F::Acc;
  static constexpr int kUnroll = unroll_of<F>();
  RONDO_INLINE Acc first(Raw x, uint32_t) const { return F::widen(x); }
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t) const { return a + F::widen(x); }
  RONDO_INLINE Raw last(const Acc& a) const { return F::narrow(a); }
};

template <class F>
struct Prod : Sum<F> {
  using typename Sum<F>::Acc;
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t) const { return a * F::widen(x); }
};

// The mean of floats: the sum times 1/n if that is exact (n a power of two), else divided by n.
template <class F>
struct SumTimes : Sum<F> {
  using typename Sum<F>::Acc;
  typename F::Scalar factor;
  RONDO_INLINE Raw last(const Acc& a) const { return F::narrow(a * factor); }
};
template <class F>
struct SumOver : Sum<F> {
  using typename Sum<F>::Acc;
  typename F::Scalar divisor;
  RONDO_INLINE Raw last(const Acc& a) const { return F::narrow(a / divisor); }
};

// Scales one source, the caller's raw input, before adding it.
template <class F>
struct PremulSum : Sum<F> {
  using typename Sum<F>::Acc;
  uint32_t own;
  typename F::Scalar scale;
  RONDO_INLINE Acc scaled(Raw x, uint32_t s) const {
    const Acc a = F::widen(x);
    return s == own ? a * scale : a;
  }
  RONDO_INLINE Acc first(Raw x, uint32_t s) const { return scaled(x, s); }
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t s) const { return a + scaled(x, s); }
};

// The mean of integers, truncated toward zero. T is the signed or unsigned type itself; sums are formed in U. A power
// of two that fits the type is a shift, after adding divisor - 1 to a negative sum.
template <class T, class U>
struct SumShift : Sum<Wrapping<U>> {
  using Acc = Vec<U>;
  int shift;
  RONDO_INLINE Raw last(const Acc& a) const {
    using Exact = Vec<T>;
    if constexpr (static_cast<T>(-1) < static_cast<T>(0)) {
      const Acc sign = reinterpret_cast<Acc>(reinterpret_cast<Exact>(a) < 0);
      const Acc lift = sign & static_cast<U>((U{1} << shift) - 1);
      return reinterpret_cast<Raw>(reinterpret_cast<Exact>(a + lift) >> static_cast<T>(shift));
    } else {
      return reinterpret_cast<Raw>(a >> static_cast<U>(shift));
    }
  }
};

// Any other divisor. The truncated quotient of integers of at most 32 bits in double (8 bits: in float) is exact:
// unless it is an integer it differs from the next one by at least 1 / divisor, far above the rounding error.
template <class T, class U>
struct SumQuotient : Sum<Wrapping<U>> {
  using Acc = Vec<U>;
  uint32_t divisor;
  RONDO_INLINE Raw last(const Acc& a) const {
    constexpr int kLanes = static_cast<int>(kWidth / sizeof(T));
    alignas(64) U sum[kLanes];
    __builtin_memcpy(sum, &a, kWidth);
    for (int l = 0; l < kLanes; ++l) {
      const T value = static_cast<T>(sum[l]);
      if constexpr (sizeof(T) == 1) {
        sum[l] = static_cast<U>(static_cast<int32_t>(static_cast<float>(value) / static_cast<float>(divisor)));
      } else if constexpr (sizeof(T) == 4) {
        sum[l] = static_cast<U>(static_cast<T>(static_cast<double>(value) / static_cast<double>(divisor)));
      } else {
        sum[l] = static_cast<U>(value / static_cast<T>(divisor));
      }
    }
    Raw r;
    __builtin_memcpy(&r, sum, kWidth);
    return r;
  }
};

template <class T, bool kMax>
struct IntExtreme : Sum<Wrapping<T>> {
  using Acc = Vec<T>;
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t) const {
    const Acc b = reinterpret_cast<Acc>(x);
    if constexpr (kMax) return a > b ? a : b;
    return a < b ? a : b;
  }
};

template <class T, Op kOp>
struct Bitwise : Sum<Wrapping<T>> {
  using Acc = Vec<T>;
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t) const {
    const Acc b = reinterpret_cast<Acc>(x);
    if constexpr (kOp == Op::kBitAnd) return a & b;
    if constexpr (kOp == Op::kBitOr) return a | b;
    return a ^ b;
  }
};

// IEEE 754-2019 maximum and minimum of fp32 and fp64. Equal operands differ at most in the sign of zero; their bits are
// combined by and (max) or or (min). A NaN on either side wins.
template <class F, class B, bool kMax>
struct FloatExtreme : Sum<F> {
  using typename Sum<F>::Acc;
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t) const {
    const Acc b = F::widen(x);
    const B abits = reinterpret_cast<B>(a);
    const B bbits = reinterpret_cast<B>(b);
    Acc r = kMax ? (a > b ? a : b) : (a < b ? a : b);
    r = a == b ? reinterpret_cast<Acc>(kMax ? (abits & bbits) : (abits | bbits)) : r;
    return a == a ? r : a;
  }
};

// Maximum and minimum of 8- and 16-bit floats on integers: flipping the magnitude of negative numbers orders the codes
// like the values, -0 below +0. A NaN becomes the extreme key, and the canonical NaN at the end.
template <Dtype kDtype, bool kMax>
struct NarrowExtreme {
  using T = std::conditional_t<dtype_bytes(kDtype) == 1, int8_t, int16_t>;
  using Acc = Vec<T>;
  static constexpr int kUnroll = 4;
  static constexpr T kMaxCode = static_cast<T>(float_format(kDtype).max_code);
  static constexpr T kNanCode = static_cast<T>(float_format(kDtype).nan_code);
  static constexpr T kMagnitude = static_cast<T>((1u << (8 * sizeof(T) - 1)) - 1);
  static constexpr T kTop = kMax ? kMagnitude : static_cast<T>(-kMagnitude - 1);
  RONDO_INLINE Acc first(Raw x, uint32_t) const {
    const Acc code = reinterpret_cast<Acc>(x);
    const Acc key = code ^ ((code < 0) & kMagnitude);
    return (code & kMagnitude) > kMaxCode ? Acc{} + kTop : key;
  }
  RONDO_INLINE Acc join(const Acc& a, Raw x, uint32_t s) const {
    const Acc b = first(x, s);
    if constexpr (kMax) return a > b ? a : b;
    return a < b ? a : b;
  }
  RONDO_INLINE Raw last(const Acc& a) const {
    const Acc code = a ^ ((a < 0) & kMagnitude);
    return reinterpret_cast<Raw>(a == kTop ? Acc{} + kNanCode : code);
  }
};

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
