// Optimizers, one element at a time. The host's loops (host_training.cc) and the CUDA kernels (optimizer_kernels.h)
// run this code, so that both give the same bits. Both are compiled without contraction of a * b + c, and with IEEE 754
// rounding of square roots and divisions. Thread safety: plain values and pure functions.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace rondo {

/// Constants of one step, equal for all elements.
struct RuleConstants {
  float scale = 1;               // factor for gradients
  float lr = 0, decay = 0;       // decay is added to the gradient
  float momentum = 0, rest = 0;  // rest: 1 - dampening, or 1 - rho
  float keep = 1;                // decoupled weight decay
  float b1 = 0, n1 = 0, b2 = 0, n2 = 0;
  float rate = 0, root = 0;  // bias-corrected lr and 1 / sqrt of the second moment
  float rho = 0, eps = 0;
  bool first = false, nesterov = false;
};

struct SgdRule {
  static constexpr int kStates = 0;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants& c, float& p, float g, float&, float&) {
    p -= c.lr * (g * c.scale + c.decay * p);
  }
};

struct MomentumRule {
  static constexpr int kStates = 1;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants& c, float& p, float g, float& buf, float&) {
    const float d = g * c.scale + c.decay * p;
    const float b = c.first ? d : c.momentum * buf + c.rest * d;
    buf = b;
    p -= c.lr * (c.nesterov ? d + c.momentum * b : b);
  }
};

struct AdamRule {
  static constexpr int kStates = 2;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants& c, float& p, float g, float& m, float& v) {
    const float d = g * c.scale + c.decay * p;
    m = c.b1 * m + c.n1 * d;
    v = c.b2 * v + c.n2 * (d * d);
    p = p * c.keep - c.rate * (m / (std::sqrt(v) * c.root + c.eps));
  }
};

struct AdadeltaRule {
  static constexpr int kStates = 2;
  static RONDO_HOST_DEVICE_INLINE void apply(const RuleConstants& c, float& p, float g, float& square, float& change) {
    const float d = g * c.scale + c.decay * p;
    square = c.rho * square + c.rest * (d * d);
    const float delta = std::sqrt(change + c.eps) / std::sqrt(square + c.eps) * d;
    change = c.rho * change + c.rest * (delta * delta);
    p -= c.lr * delta;
  }
};

/// Number of partial sums of squares. Element i of an array goes to lane i % kSquareLanes, and the lanes are added
/// last. This order does not depend on the number of threads.
inline constexpr uint32_t kSquareLanes = 32768;

}  // namespace rondo
