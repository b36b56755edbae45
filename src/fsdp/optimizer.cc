// Names and limits of optimizers. The arithmetic is in fsdp/optimizer_rules.h.
#include "rondo/fsdp/optimizer.h"

#include <cmath>

#include "base/error.h"

namespace rondo::fsdp {
namespace {

Status bad(const char* field, double value, const char* expected) {
  return invalid_argument("optimizer.{} = {:g}: expected {}", field, value, expected);
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
    return bad("nesterov", 1, "momentum above 0 and dampening 0");
  if (!below_one(c.beta1)) return bad("beta1", c.beta1, "from 0 to below 1");
  if (!below_one(c.beta2)) return bad("beta2", c.beta2, "from 0 to below 1");
  if (!(c.rho >= 0 && c.rho <= 1)) return bad("rho", c.rho, "from 0 to 1");
  return {};
}

}  // namespace rondo::fsdp
