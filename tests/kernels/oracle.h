// A scalar model of the reduce kernels, written only from the documentation in src/kernels/kernels.h and
// include/rondo/types.h. It shares no code with them. Narrow floats are decoded with ldexp and encoded by searching the
// sorted list of codes for the nearest.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "rondo/types.h"
#include "support/float_spec.h"

namespace rondo::oracle {

inline double decode(uint32_t code, const FloatSpec& s) {
  const uint32_t mantissa = code & ((1u << s.mantissa_bits) - 1);
  const uint32_t exponent = (code >> s.mantissa_bits) & ((1u << s.exponent_bits) - 1);
  const bool negative = ((code >> (s.mantissa_bits + s.exponent_bits)) & 1) != 0;
  const uint32_t top = (1u << s.exponent_bits) - 1;
  double value;
  if (s.has_infinity && exponent == top) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (!s.has_infinity && exponent == top && mantissa == (1u << s.mantissa_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - s.bias() - s.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa + (1u << s.mantissa_bits)),
                       static_cast<int>(exponent) - s.bias() - s.mantissa_bits);
  }
  return negative ? -value : value;
}

/// Nearest code, ties to even. Half a step or more beyond the largest finite number: infinity, or saturation.
inline uint32_t encode(float value, const FloatSpec& s) {
  if (std::isnan(value)) return s.canonical_nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint32_t sign = std::signbit(value) ? 1u << (s.mantissa_bits + s.exponent_bits) : 0;
  const uint32_t top_exponent = ((1u << s.exponent_bits) - 1) << s.mantissa_bits;
  const uint32_t max_finite = s.has_infinity ? top_exponent - 1 : (top_exponent | ((1u << s.mantissa_bits) - 1)) - 1;
  uint32_t low = 0, high = max_finite;  // the largest code with a value <= magnitude
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (decode(middle, s) <= magnitude) low = middle;
    else high = middle - 1;
  }
  const double below = decode(low, s);
  double above;
  if (low == max_finite) {
    if (!s.has_infinity) return sign | max_finite;
    above = below + (below - decode(low - 1, s));  // the next number if there were no upper limit
  } else {
    above = decode(low + 1, s);
  }
  const double middle = (below + above) / 2;
  if (magnitude > middle || (magnitude == middle && (low & 1) != 0)) ++low;  // max_finite + 1 is infinity
  return sign | low;
}

template <int kBytes>
using UnsignedOf =
    std::conditional_t<kBytes == 1, uint8_t,
                       std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

/// Integers, float and double: the type is its own accumulator.
template <Dtype kDtype, bool kNarrow = is_narrow_float(kDtype)>
struct Element {
  using Unsigned = UnsignedOf<dtype_bytes(kDtype)>;
  using Integer = std::conditional_t<is_signed(kDtype), std::make_signed_t<Unsigned>, Unsigned>;
  using Float = std::conditional_t<kDtype == Dtype::kFloat32, float, double>;
  using Store = std::conditional_t<is_float(kDtype), Float, Integer>;
  using Acc = Store;
  static Acc widen(Store x) { return x; }
  static Store narrow(Acc x) {
    if constexpr (is_float(kDtype)) {
      if (x != x) return std::numeric_limits<Store>::quiet_NaN();
    }
    return x;
  }
};
template <Dtype kDtype>
struct Element<kDtype, true> {
  using Store = UnsignedOf<dtype_bytes(kDtype)>;
  using Acc = float;
  static Acc widen(Store x) { return static_cast<float>(decode(x, float_spec(kDtype))); }
  static Store narrow(Acc x) { return static_cast<Store>(encode(x, float_spec(kDtype))); }
};

// Wide integers hold every sum and product of two. The cast back to T wraps.
template <class T>
T plus(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    volatile T r = a + b;
    return r;
  } else {
    return static_cast<T>(static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b));
  }
}
template <class T>
T times(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    volatile T r = a * b;  // volatile: never fused with a following addition
    return r;
  } else {
    return static_cast<T>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
  }
}
template <class T>
T divide(T a, uint32_t n) {
  if constexpr (std::is_floating_point_v<T>) return a / static_cast<T>(n);
  else return static_cast<T>(static_cast<__int128>(a) / static_cast<__int128>(n));
}
template <class T>
T maximum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a > b ? a : b;
}
template <class T>
T minimum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}

struct Call {
  Op op;
  uint32_t divide_by = 0;
  uint32_t own = UINT32_MAX;
  const void* premul = nullptr;
};

template <class T>
T bitwise(const std::vector<T>& x, Op op) {
  T bits = x[0];
  for (size_t s = 1; s < x.size(); ++s)
    bits = static_cast<T>(op == Op::kBitAnd ? bits & x[s] : op == Op::kBitOr ? bits | x[s] : bits ^ x[s]);
  return bits;
}

/// Computes one element from its sources.
template <Dtype kDtype>
typename Element<kDtype>::Store reduce(const std::vector<typename Element<kDtype>::Store>& x, const Call& call) {
  using E = Element<kDtype>;
  using Acc = typename E::Acc;
  const bool divides = call.op == Op::kAvg && call.divide_by != 0;
  const bool scales = call.op == Op::kPremulSum && call.own != UINT32_MAX;
  if (x.size() == 1 && !divides && !scales) return x[0];  // a copy keeps every bit
  auto value = [&](size_t s) {
    Acc v = E::widen(x[s]);
    if (scales && s == call.own) {
      Acc scale;
      std::memcpy(&scale, call.premul, sizeof(scale));
      v = times(v, scale);
    }
    return v;
  };
  if constexpr (std::is_integral_v<Acc>)
    if (is_bitwise(call.op)) return bitwise<typename E::Store>(x, call.op);
  Acc acc = value(0);
  for (size_t s = 1; s < x.size(); ++s) {
    switch (call.op) {
      case Op::kProd: acc = times(acc, value(s)); break;
      case Op::kMax: acc = maximum(acc, value(s)); break;
      case Op::kMin: acc = minimum(acc, value(s)); break;
      default: acc = plus(acc, value(s)); break;
    }
  }
  return E::narrow(divides ? divide(acc, call.divide_by) : acc);
}

/// Bytes of `num_elems` elements: random bit patterns (with NaN, infinity and subnormals); every second element has a
/// moderate size, so that sums neither all overflow nor all round away.
template <Dtype kDtype>
std::vector<typename Element<kDtype>::Store> random_elements(uint64_t num_elems, uint64_t seed) {
  using E = Element<kDtype>;
  using Store = typename E::Store;
  std::mt19937_64 bits(seed);
  std::vector<Store> x(num_elems);
  static constexpr double kSpecial[] = {0.0, -0.0, 1.0, -1.0, std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN()};
  for (Store& v : x) {
    const uint64_t r = bits();
    if constexpr (std::is_floating_point_v<typename E::Acc>) {
      const uint64_t kind = r % 8;
      if (kind == 0) {
        const uint64_t other = bits();  // kind fixes the low bits of r
        std::memcpy(&v, &other, sizeof(v));
      } else if (kind == 1) {
        v = E::narrow(static_cast<typename E::Acc>(kSpecial[bits() % std::size(kSpecial)]));
      } else {
        const double fraction = static_cast<double>(bits() >> 11) * 0x1p-53 - 0.5;
        const double tame = std::ldexp(fraction, static_cast<int>(bits() % 12) - 6);
        v = E::narrow(static_cast<typename E::Acc>(tame));
      }
    } else {
      std::memcpy(&v, &r, sizeof(v));
      if (r >> 63) v = static_cast<Store>(v % 16);
    }
  }
  return x;
}

}  // namespace rondo::oracle
