// The formats of the float types, for the oracles. Written from docs/types.md, independently of the kernels' formats
// (src/kernels/float_formats.h).
#pragma once

#include <cstdint>
#include <cstdlib>

#include "rondo/types.h"

namespace rondo::oracle {

struct FloatSpec {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  uint32_t canonical_nan = 0;  // of narrow floats
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int max_exponent() const { return bias() + (has_infinity ? 0 : 1); }
  constexpr int min_exponent() const { return 1 - bias(); }  // of normal numbers
};

constexpr FloatSpec float_spec(Dtype t) {
  switch (t) {
    case Dtype::kFloat16: return {5, 10, true, 0x7e00};
    case Dtype::kBfloat16: return {8, 7, true, 0x7fc0};
    case Dtype::kFloat8E4m3: return {4, 3, false, 0x7f};
    case Dtype::kFloat8E5m2: return {5, 2, true, 0x7f};
    case Dtype::kFloat32: return {8, 23, true};
    case Dtype::kFloat64: return {11, 52, true};
    default: std::abort();
  }
}

}  // namespace rondo::oracle
