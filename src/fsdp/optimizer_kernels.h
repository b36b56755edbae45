// Optimizer kernels for a device: the part of one thread. The code compiles for host and device, so tests run it on
// host threads.
//
//   rondo_optimizer_{sgd,momentum,adam,adadelta}   one pass over parameters, gradients and state
//   rondo_floats_{add,scale}, rondo_add_squares    micro-batches, clipping
//
// Every array is read and written once, 16 bytes at a time if all arrays are aligned to 16 bytes.
#pragma once

#include "fsdp/optimizer_rules.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/reduce_copy.h"

namespace rondo {

/// The only argument of each kernel. Pointers are device pointers. Unused pointers are null.
struct OptimizerArgs {
  float* params;       // for rondo_floats_*: the array that is changed
  const float* grads;  // the array that is read
  float* states[2];
  double* lanes;  // for rondo_add_squares: kSquareLanes sums
  uint64_t num_elems;
  RuleConstants constants;
};

inline constexpr uint32_t kOptimizerThreads = 512;  // threads of a block

namespace device_kernels {

RONDO_HOST_DEVICE_INLINE Words<4> load_floats(const float* p, uint64_t i) {
  return load_aligned<Words<4>>(reinterpret_cast<const std::byte*>(p + i));
}
RONDO_HOST_DEVICE_INLINE void store_floats(float* p, uint64_t i, const Words<4>& v) {
  store_aligned(reinterpret_cast<std::byte*>(p + i), v);
}

/// Applies a rule to its arrays: params, grads and Rule::kStates states.
template <class Rule>
RONDO_HOST_DEVICE_INLINE void grid_rule(const OptimizerArgs& a, Threads threads) {
  constexpr bool kOne = Rule::kStates > 0, kTwo = Rule::kStates > 1;
  const bool wide = is_aligned(a.params, 16) && is_aligned(a.grads, 16) && (!kOne || is_aligned(a.states[0], 16)) &&
                    (!kTwo || is_aligned(a.states[1], 16));
  const uint64_t whole = wide ? a.num_elems / 4 * 4 : 0;
  for (uint64_t i = uint64_t{4} * threads.index; i < whole; i += uint64_t{4} * threads.count) {
    Words<4> p = load_floats(a.params, i), s0{}, s1{};
    const Words<4> g = load_floats(a.grads, i);
    if constexpr (kOne) s0 = load_floats(a.states[0], i);
    if constexpr (kTwo) s1 = load_floats(a.states[1], i);
    RONDO_UNROLL
    for (int k = 0; k < 4; ++k) {
      float param = float_of(p.w[k]), one = float_of(s0.w[k]), two = float_of(s1.w[k]);
      Rule::apply(a.constants, param, float_of(g.w[k]), one, two);
      p.w[k] = bits_of(param), s0.w[k] = bits_of(one), s1.w[k] = bits_of(two);
    }
    store_floats(a.params, i, p);
    if constexpr (kOne) store_floats(a.states[0], i, s0);
    if constexpr (kTwo) store_floats(a.states[1], i, s1);
  }
  for (uint64_t i = whole + threads.index; i < a.num_elems; i += threads.count) {
    float none = 0;
    float& one = kOne ? a.states[0][i] : none;
    float& two = kTwo ? a.states[1][i] : none;
    Rule::apply(a.constants, a.params[i], a.grads[i], one, two);
  }
}

struct AddRule {
  static constexpr int kStates = 0;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants&, float& to, float from, float&, float&) {
    to += from;
  }
};
/// params is both input and output.
struct ScaleRule {
  static constexpr int kStates = 0;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants& c, float& x, float, float&, float&) { x *= c.scale; }
};

/// One thread adds all elements of a lane. Therefore every grid size adds in the same order.
RONDO_HOST_DEVICE_INLINE void grid_add_squares(const OptimizerArgs& a, Threads threads) {
  for (uint32_t lane = threads.index; lane < kSquareLanes && lane < a.num_elems; lane += threads.count) {
    double sum = a.lanes[lane];
    for (uint64_t i = lane; i < a.num_elems; i += kSquareLanes)
      sum += static_cast<double>(a.grads[i]) * static_cast<double>(a.grads[i]);
    a.lanes[lane] = sum;
  }
}

}  // namespace device_kernels
}  // namespace rondo

// X(kernel name, thread function) for each kernel. Used by kernels.cu and by host threads.
#define RONDO_OPTIMIZER_KERNELS(X)                                                          \
  X(rondo_optimizer_sgd, rondo::device_kernels::grid_rule<rondo::SgdRule>)                  \
  X(rondo_optimizer_momentum, rondo::device_kernels::grid_rule<rondo::MomentumRule>)        \
  X(rondo_optimizer_adam, rondo::device_kernels::grid_rule<rondo::AdamRule>)                \
  X(rondo_optimizer_adadelta, rondo::device_kernels::grid_rule<rondo::AdadeltaRule>)        \
  X(rondo_floats_add, rondo::device_kernels::grid_rule<rondo::device_kernels::AddRule>)     \
  X(rondo_floats_scale, rondo::device_kernels::grid_rule<rondo::device_kernels::ScaleRule>) \
  X(rondo_add_squares, rondo::device_kernels::grid_add_squares)
