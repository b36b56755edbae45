// Copies and reductions of mixed type rows; kernels.h documents MixedKernelArgs. Included once per SIMD level; see
// vector.h.
//
// The most common rows go through registers (fused.h). All other rows, ops and shapes run in blocks that stay in the
// first-level cache:
//
//   wire sources  --widen----------------------------> |            |                     +--narrow--> sends
//                                                      | acc (fp32) | --divide, to wire --+
//   own source    --widen, scale, to wire--> operand-> |            |                     +--narrow--> dst[0]
//
// Raw sources are all treated as own sources.
#pragma once

#include "kernels/inner/driver.h"
#include "kernels/inner/fused.h"
#include "kernels/kernels.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

constexpr uint64_t kBlockElems = 1024;

// Calls f with the format of t.
template <class F>
RONDO_INLINE void with_format(Dtype t, F f) {
  switch (t) {
    case Dtype::kBfloat16: return f(LanesBf16{});
    case Dtype::kFloat16: return f(LanesFp16{});
    case Dtype::kFloat8E4m3: return f(LanesE4m3{});
    case Dtype::kFloat8E5m2: return f(LanesE5m2{});
    default: return f(LanesFp32{});
  }
}

// to[i] = f(from[i]); from and to may be the same floats.
template <class From, class To, class F>
RONDO_INLINE void map(const void* from, void* to, uint64_t num_elems, F f) {
  const uint8_t* p = static_cast<const uint8_t*>(from);
  uint8_t* q = static_cast<uint8_t*>(to);
  uint64_t i = 0;
#pragma GCC unroll 4
  for (; num_elems - i >= kLanes; i += kLanes) {
    store_codes(q + i * kElemBytes<To>, To::narrow(f(load_lanes<From>(p + i * kElemBytes<From>))));
  }
  if (i == num_elems) return;
  const uint64_t rest = num_elems - i;
  store_some_codes(q + i * kElemBytes<To>, To::narrow(f(load_some_lanes<From>(p + i * kElemBytes<From>, rest))), rest);
}

// acc[i] = acc[i] op from[i]; acc is a block with room for whole registers.
template <class From, class R>
RONDO_INLINE void join_block(float* acc, const void* from, uint64_t num_elems, const R& recipe) {
  const uint8_t* p = static_cast<const uint8_t*>(from);
  uint8_t* a = reinterpret_cast<uint8_t*>(acc);
  uint64_t i = 0;
#pragma GCC unroll 4
  for (; num_elems - i >= kLanes; i += kLanes) {
    const Floats x = load_lanes<From>(p + i * kElemBytes<From>);
    store(a + i * sizeof(float), bits_of(recipe.join(floats_of(load(a + i * sizeof(float))), bits_of(x), 0)));
  }
  if (i == num_elems) return;
  const Floats x = load_some_lanes<From>(p + i * kElemBytes<From>, num_elems - i);
  store(a + i * sizeof(float), bits_of(recipe.join(floats_of(load(a + i * sizeof(float))), bits_of(x), 0)));
}

__attribute__((noinline)) void widen_block(Dtype t, const void* from, float* to, uint64_t num_elems) {
  with_format(t, [=](auto lanes) { map<decltype(lanes), LanesFp32>(from, to, num_elems, [](Floats v) { return v; }); });
}
__attribute__((noinline)) void narrow_block(Dtype t, const float* from, void* to, uint64_t num_elems) {
  with_format(t, [=](auto lanes) { map<LanesFp32, decltype(lanes)>(from, to, num_elems, [](Floats v) { return v; }); });
}
// Rounds to format t and widens again.
__attribute__((noinline)) void round_block(Dtype t, float* block, uint64_t num_elems) {
  with_format(t, [=](auto lanes) {
    using L = decltype(lanes);
    map<LanesFp32, LanesFp32>(block, block, num_elems, [](Floats v) { return L::round(v); });
  });
}
__attribute__((noinline)) void scale_block(float* block, float scale, uint64_t num_elems) {
  map<LanesFp32, LanesFp32>(block, block, num_elems, [=](Floats v) { return v * scale; });
}
__attribute__((noinline)) void divide_block(float* block, float divisor, uint64_t num_elems) {
  map<LanesFp32, LanesFp32>(block, block, num_elems, [=](Floats v) { return v / divisor; });
}
template <class R>
__attribute__((noinline)) void join_blocks(Dtype t, float* acc, const void* from, uint64_t num_elems) {
  with_format(t, [=](auto lanes) { join_block<decltype(lanes)>(acc, from, num_elems, R{}); });
}
void join_operand(Op op, Dtype t, float* acc, const void* from, uint64_t num_elems) {
  switch (op) {
    case Op::kProd: return join_blocks<Prod<Fp32>>(t, acc, from, num_elems);
    case Op::kMax: return join_blocks<FloatExtreme<Fp32, Bits, true>>(t, acc, from, num_elems);
    case Op::kMin: return join_blocks<FloatExtreme<Fp32, Bits, false>>(t, acc, from, num_elems);
    default: return join_blocks<Sum<Fp32>>(t, acc, from, num_elems);
  }
}

// Passes a received operand on with canonical NaN. Arithmetic would be the whole cost of fp8.
template <Dtype kDtype>
struct ProxyFp8 : Identity {
  RONDO_INLINE Raw last(Raw x) const {
    return reinterpret_cast<Raw>(canonical_codes<kDtype, int8_t>(reinterpret_cast<Vec<int8_t>>(x)));
  }
};
// Sends a single fp8 wire source on. dst[0], if any, is not written.
void proxy_fp8(const MixedKernelArgs& m) {
  KernelArgs sends = m.args;
  if (m.has_dst) {
    ++sends.dst;
    --sends.num_dst;
  }
  if (sends.num_dst == 0) return;
  if (m.wire == Dtype::kFloat8E4m3) {
    pass<1, 0>(sends, sends.num_elems, ProxyFp8<Dtype::kFloat8E4m3>{});
  } else {
    pass<1, 0>(sends, sends.num_elems, ProxyFp8<Dtype::kFloat8E5m2>{});
  }
}

RONDO_INLINE uint64_t elem_bytes(Dtype t) {
  switch (t) {
    case Dtype::kFloat32: return 4;
    case Dtype::kBfloat16:
    case Dtype::kFloat16: return 2;
    default: return 1;
  }
}
RONDO_INLINE bool is_own(const MixedKernelArgs& m, uint32_t s) { return m.raw || s == m.args.own; }
RONDO_INLINE const uint8_t* source_at(const MixedKernelArgs& m, uint32_t s, uint64_t first_elem) {
  return static_cast<const uint8_t*>(m.args.src[s]) + first_elem * elem_bytes(is_own(m, s) ? m.own_type : m.wire);
}
RONDO_INLINE uint8_t* sink_at(const MixedKernelArgs& m, uint32_t d, uint64_t first_elem) {
  return static_cast<uint8_t*>(m.args.dst[d]) + first_elem * elem_bytes(d == 0 && m.has_dst ? m.dst_type : m.wire);
}

// The own operand s, scaled.
void load_own(const MixedKernelArgs& m, uint32_t s, uint64_t first_elem, float* block, uint64_t num_elems) {
  widen_block(m.own_type, source_at(m, s, first_elem), block, num_elems);
  if (m.args.premul != nullptr) {
    float scale;
    __builtin_memcpy(&scale, m.args.premul, sizeof(scale));
    scale_block(block, scale, num_elems);
  }
}

// Sends begin with dst[first_send].
void mixed_block(const MixedKernelArgs& m, uint32_t first_send, uint64_t first_elem, uint64_t num_elems) {
  alignas(64) float acc[kBlockElems];
  alignas(64) float operand[kBlockElems];
  const bool copies_own = m.args.num_src == 1 && is_own(m, 0) && m.args.divide_by == 0;  // rounded as the result
  if (is_own(m, 0)) load_own(m, 0, first_elem, acc, num_elems);
  else widen_block(m.wire, source_at(m, 0, first_elem), acc, num_elems);
  if (is_own(m, 0) && !copies_own) round_block(m.wire, acc, num_elems);
  for (uint32_t s = 1; s < m.args.num_src; ++s) {
    if (is_own(m, s)) {
      load_own(m, s, first_elem, operand, num_elems);
      round_block(m.wire, operand, num_elems);
      join_operand(m.op, Dtype::kFloat32, acc, operand, num_elems);
    } else {
      join_operand(m.op, m.wire, acc, source_at(m, s, first_elem), num_elems);
    }
  }
  if (m.args.divide_by != 0) divide_block(acc, static_cast<float>(m.args.divide_by), num_elems);
  for (uint32_t d = first_send; d < m.args.num_dst; ++d) {
    narrow_block(m.wire, acc, sink_at(m, d, first_elem), num_elems);
  }
  if (!m.has_dst) return;
  if (m.result_as_wire || copies_own) round_block(m.wire, acc, num_elems);
  narrow_block(m.dst_type, acc, sink_at(m, 0, first_elem), num_elems);
}

void mixed(const MixedKernelArgs& asked) {
  MixedKernelArgs m = asked;
  // Own operands of the wire's type become wire operands, a destination of the wire's type becomes a send.
  if (m.raw) m.args.own = 0;
  if (m.own_type == m.wire && m.args.premul == nullptr) {
    m.args.own = KernelArgs::kNoOwn;
    m.raw = false;
  }
  if (m.dst_type == m.wire) m.has_dst = false;
  if (try_fused(m)) return;
  uint32_t first_send = m.has_dst ? 1 : 0;
  const bool is_fp8 = m.wire == Dtype::kFloat8E4m3 || m.wire == Dtype::kFloat8E5m2;
  if (is_fp8 && m.args.num_src == 1 && m.args.own != 0 && m.args.divide_by == 0) {
    proxy_fp8(m);
    if (!m.has_dst) return;
    first_send = m.args.num_dst;
    m.result_as_wire = false;  // already of the wire type
  }
  for (uint64_t first_elem = 0; first_elem < m.args.num_elems; first_elem += kBlockElems) {
    const uint64_t rest = m.args.num_elems - first_elem;
    mixed_block(m, first_send, first_elem, rest < kBlockElems ? rest : kBlockElems);
  }
}

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
