// Compiled without contraction of a * b + c. Otherwise a vectorised loop body and its scalar tail could round
// differently, and results would depend on the end of a rank's part.
#include "fsdp/host_training.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace rondo {
namespace {

template <class Rule>
void run(const RuleConstants& constants, uint64_t n, float* __restrict p, const float* __restrict g,
         float* __restrict s0, float* __restrict s1) {
  const RuleConstants c = constants;  // a local copy cannot alias the arrays
  float none = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if constexpr (Rule::kStates == 0) Rule::apply(c, p[i], g[i], none, none);
    else if constexpr (Rule::kStates == 1) Rule::apply(c, p[i], g[i], s0[i], none);
    else Rule::apply(c, p[i], g[i], s0[i], s1[i]);
  }
}

}  // namespace

RuleConstants rule_constants(const fsdp::OptimizerConfig& o, int64_t step, float scale) {
  RuleConstants c;
  c.scale = scale;
  c.lr = o.lr;
  c.decay = o.weight_decay;
  c.eps = o.eps;
  switch (o.rule) {
    case fsdp::Rule::kSgd:
      c.momentum = o.momentum;
      c.rest = 1 - o.dampening;
      c.first = step == 1;
      c.nesterov = o.nesterov;
      break;
    case fsdp::Rule::kAdam:
    case fsdp::Rule::kAdamW: {
      const bool decoupled = o.rule == fsdp::Rule::kAdamW;
      c.keep = decoupled ? 1 - o.lr * o.weight_decay : 1;
      c.decay = decoupled ? 0 : o.weight_decay;
      c.b1 = o.beta1, c.n1 = 1 - o.beta1;
      c.b2 = o.beta2, c.n2 = 1 - o.beta2;
      const auto t = static_cast<double>(step);
      c.rate = static_cast<float>(o.lr / (1 - std::pow(static_cast<double>(o.beta1), t)));
      c.root = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(o.beta2), t)));
      break;
    }
    case fsdp::Rule::kAdadelta: c.rho = o.rho, c.rest = 1 - o.rho; break;
  }
  return c;
}

static_assert(fsdp::kNormLanes == kSquareLanes);

Expected<std::byte*> HostTraining::allocate(uint64_t bytes) {
  const uint64_t whole = std::max<uint64_t>(64, (bytes + 63) / 64 * 64);
  auto* at = static_cast<std::byte*>(::aligned_alloc(64, whole));
  if (at == nullptr) return make_error(StatusCode::kSystem, "no memory for {} bytes of a unit", bytes);
  std::memset(at, 0, whole);
  return at;
}
void HostTraining::free(std::byte* memory) { ::free(memory); }

Status HostTraining::add(uint64_t n, float* __restrict to, const float* __restrict from) {
  for (uint64_t i = 0; i < n; ++i) to[i] += from[i];
  return {};
}
Status HostTraining::scale(uint64_t n, float factor, float* x) {
  for (uint64_t i = 0; i < n; ++i) x[i] *= factor;
  return {};
}
Status HostTraining::add_squares(uint64_t n, const float* __restrict x, double* __restrict lanes) {
  for (uint64_t first = 0; first < n; first += kSquareLanes) {
    const uint64_t count = std::min<uint64_t>(kSquareLanes, n - first);
    for (uint64_t i = 0; i < count; ++i)
      lanes[i] += static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
  }
  return {};
}

}  // namespace rondo

namespace rondo::fsdp {

void optimizer_step(const OptimizerConfig& c, int64_t step, float scale, uint64_t n, float* params, const float* grads,
                    float* const* states) {
  const RuleConstants constants = rule_constants(c, step, scale);
  switch (c.rule) {
    case Rule::kSgd:
      if (c.momentum == 0) return run<SgdRule>(constants, n, params, grads, nullptr, nullptr);
      return run<MomentumRule>(constants, n, params, grads, states[0], nullptr);
    case Rule::kAdam:
    case Rule::kAdamW: return run<AdamRule>(constants, n, params, grads, states[0], states[1]);
    case Rule::kAdadelta: return run<AdadeltaRule>(constants, n, params, grads, states[0], states[1]);
  }
}

std::shared_ptr<Device> host_device() { return std::make_shared<HostTraining>(); }

}  // namespace rondo::fsdp
