// Compiled without contraction of a * b + c: where a loop's body is vectorised and its tail is not, both must round
// alike, or results would depend on where a rank's part ends.
#include "rondo/fsdp/optimizer.h"

#include <fmt/format.h>

#include <cmath>

namespace rondo::fsdp {
namespace {

Status bad(const char* field, double value, const char* expected) {
  return Status(StatusCode::kInvalidArgument, fmt::format("optimizer.{} = {:g}: expected {}", field, value, expected));
}

void sgd(const OptimizerConfig& c, int64_t step, float scale, uint64_t n, float* __restrict p,
         const float* __restrict g, float* __restrict buf) {
  const float lr = c.lr, decay = c.weight_decay, momentum = c.momentum, rest = 1 - c.dampening;
  if (momentum == 0) {
    for (uint64_t i = 0; i < n; ++i) p[i] -= lr * (g[i] * scale + decay * p[i]);
    return;
  }
  const bool first = step == 1;
  for (uint64_t i = 0; i < n; ++i) {
    const float d = g[i] * scale + decay * p[i];
    const float b = first ? d : momentum * buf[i] + rest * d;
    buf[i] = b;
    p[i] -= lr * (c.nesterov ? d + momentum * b : b);
  }
}

void adam(const OptimizerConfig& c, int64_t step, float scale, uint64_t n, float* __restrict p,
          const float* __restrict g, float* __restrict m, float* __restrict v) {
  const bool decoupled = c.rule == Rule::kAdamW;
  const float keep = decoupled ? 1 - c.lr * c.weight_decay : 1, decay = decoupled ? 0 : c.weight_decay;
  const float b1 = c.beta1, b2 = c.beta2, n1 = 1 - b1, n2 = 1 - b2, eps = c.eps;
  const auto t = static_cast<double>(step);
  const auto rate = static_cast<float>(c.lr / (1 - std::pow(static_cast<double>(b1), t)));
  const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(b2), t)));
  for (uint64_t i = 0; i < n; ++i) {
    const float d = g[i] * scale + decay * p[i];
    m[i] = b1 * m[i] + n1 * d;
    v[i] = b2 * v[i] + n2 * (d * d);
    p[i] = p[i] * keep - rate * (m[i] / (std::sqrt(v[i]) * root + eps));
  }
}

void adadelta(const OptimizerConfig& c, float scale, uint64_t n, float* __restrict p, const float* __restrict g,
              float* __restrict square, float* __restrict change) {
  const float rho = c.rho, rest = 1 - rho, eps = c.eps, lr = c.lr, decay = c.weight_decay;
  for (uint64_t i = 0; i < n; ++i) {
    const float d = g[i] * scale + decay * p[i];
    square[i] = rho * square[i] + rest * (d * d);
    const float delta = std::sqrt(change[i] + eps) / std::sqrt(square[i] + eps) * d;
    change[i] = rho * change[i] + rest * (delta * delta);
    p[i] -= lr * delta;
  }
}

}  // namespace

int optimizer_states(const OptimizerConfig& c) {
  if (c.rule == Rule::kSgd) return c.momentum != 0 ? 1 : 0;
  return 2;
}

const char* optimizer_state_name(const OptimizerConfig& c, int state) {
  if (state < 0 || state >= optimizer_states(c)) return nullptr;
  switch (c.rule) {
    case Rule::kSgd: return "momentum_buffer";
    case Rule::kAdam:
    case Rule::kAdamW: return state == 0 ? "exp_avg" : "exp_avg_sq";
    case Rule::kAdadelta: return state == 0 ? "square_avg" : "acc_delta";
  }
  return nullptr;
}

Status check_optimizer(const OptimizerConfig& c) {
  auto below_one = [](float x) { return x >= 0 && x < 1; };
  if (!(c.lr >= 0) || !std::isfinite(c.lr)) return bad("lr", c.lr, "a finite number, 0 or more");
  if (!(c.weight_decay >= 0)) return bad("weight_decay", c.weight_decay, "0 or more");
  if (!(c.eps >= 0)) return bad("eps", c.eps, "0 or more");
  if (!(c.momentum >= 0)) return bad("momentum", c.momentum, "0 or more");
  if (c.nesterov && (c.momentum == 0 || c.dampening != 0))
    return bad("nesterov", 1, "momentum, and no dampening, with it");
  if (!below_one(c.beta1)) return bad("beta1", c.beta1, "from 0 to below 1");
  if (!below_one(c.beta2)) return bad("beta2", c.beta2, "from 0 to below 1");
  if (!(c.rho >= 0 && c.rho <= 1)) return bad("rho", c.rho, "from 0 to 1");
  return {};
}

void optimizer_step(const OptimizerConfig& c, int64_t step, float scale, uint64_t n, float* params, const float* grads,
                    float* const* states) {
  switch (c.rule) {
    case Rule::kSgd: return sgd(c, step, scale, n, params, grads, c.momentum != 0 ? states[0] : nullptr);
    case Rule::kAdam:
    case Rule::kAdamW: return adam(c, step, scale, n, params, grads, states[0], states[1]);
    case Rule::kAdadelta: return adadelta(c, scale, n, params, grads, states[0], states[1]);
  }
}

}  // namespace rondo::fsdp
