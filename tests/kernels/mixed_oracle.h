// A scalar model of the mixed kernel, written from the documentation of MixedKernelArgs (src/kernels/kernels.h) and
// row_index (include/rondo/types.h). Shares no code with the library. One element at a time, with explicit roundings.
#pragma once

#include "kernels/oracle.h"

namespace rondo::oracle {

/// The value of an element of `t`, from its bits in the lower bytes.
inline float mixed_widen(Dtype t, uint32_t bits) {
  return t == Dtype::kFloat32 ? std::bit_cast<float>(bits) : static_cast<float>(decode(bits, float_spec(t)));
}
/// The bits of the element of `t` nearest to x.
inline uint32_t mixed_narrow(Dtype t, float x) {
  if (t != Dtype::kFloat32) return encode(x, float_spec(t));
  return std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x);
}
inline float mixed_round(Dtype t, float x) { return mixed_widen(t, mixed_narrow(t, x)); }

/// A call of the mixed kernel without its buffers. Rows: own, wire and destination type.
struct MixedCall {
  Dtype own_type, wire, dst_type;
  Op op = Op::kSum;
  uint32_t own = UINT32_MAX;
  const float* premul = nullptr;
  uint32_t divide_by = 0;
  bool result_as_wire = false;
  bool raw = false;
};
struct MixedResult {
  uint32_t sent;  // sent value
  uint32_t dst;   // value of dst[0], if there is one
};

/// Computes one element from the bits of its sources.
inline MixedResult mixed(const std::vector<uint32_t>& x, const MixedCall& call) {
  auto value = [&](size_t s) {
    if (s != call.own && !call.raw) return mixed_widen(call.wire, x[s]);
    float v = mixed_widen(call.own_type, x[s]);
    if (call.premul != nullptr) v = times(v, *call.premul);
    return mixed_round(call.wire, v);
  };
  float acc = value(0);
  for (size_t s = 1; s < x.size(); ++s) {
    switch (call.op) {
      case Op::kProd: acc = times(acc, value(s)); break;
      case Op::kMax: acc = maximum(acc, value(s)); break;
      case Op::kMin: acc = minimum(acc, value(s)); break;
      default: acc = plus(acc, value(s)); break;
    }
  }
  if (call.divide_by != 0) acc = divide(acc, call.divide_by);
  const float kept = call.result_as_wire ? mixed_round(call.wire, acc) : acc;
  return {mixed_narrow(call.wire, acc), mixed_narrow(call.dst_type, kept)};
}

}  // namespace rondo::oracle
