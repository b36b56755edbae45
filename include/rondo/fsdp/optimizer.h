// Optimizers for a rank's own part: one pass over parameters, gradients and state, element by element. The bits
// therefore do not depend on the sharding. Formulas and defaults are torch.optim's.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>

#include "rondo/rondo.h"
#include "rondo/status.h"

namespace rondo::fsdp {

enum class Rule : uint8_t { kSgd, kAdam, kAdamW, kAdadelta };

struct OptimizerConfig {
  Rule rule = Rule::kAdamW;
  float lr = 1e-3f;
  float weight_decay = 0;              // kAdamW: decoupled; else added to the gradient
  float momentum = 0;                  // kSgd
  float dampening = 0;                 // kSgd
  bool nesterov = false;               // kSgd
  float beta1 = 0.9f, beta2 = 0.999f;  // kAdam, kAdamW
  float rho = 0.9f;                    // kAdadelta
  float eps = 1e-8f;                   // torch uses 1e-6 for Adadelta
};

/// Floats of state per element: 0 to 2.
RONDO_API int optimizer_states(const OptimizerConfig& config);
/// torch.optim's name: "momentum_buffer", "exp_avg", ...; nullptr beyond optimizer_states().
RONDO_API const char* optimizer_state_name(const OptimizerConfig& config, int state);
/// kInvalidArgument, which names the field: lr < 0, betas outside [0, 1), rho outside [0, 1], nesterov
/// without momentum, ...
RONDO_API Status check_optimizer(const OptimizerConfig& config);

/// One step on n elements. step: 1 for the first. states: optimizer_states() arrays of n floats, zero before the first
/// step. scale multiplies the gradients first (clipping). O(n), reads and writes every array once.
RONDO_API void optimizer_step(const OptimizerConfig& config, int64_t step, float scale, uint64_t n, float* params,
                              const float* grads, float* const* states);

}  // namespace rondo::fsdp
