// Optimizers, one element at a time: the one text that the host's loops (optimizer.cc) and the CUDA kernels
// (fsdp/optimizer_kernels.h) run, so that both give the same bits. Both are compiled without contraction of
// a * b + c, and with square roots and divisions that round as IEEE 754 says.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace rondo {

/// What is equal for all elements of a step.
struct RuleConstants {
  float scale = 1;               // of gradients
  float lr = 0, decay = 0;       // decay: added to the gradient
  float momentum = 0, rest = 0;  // rest: 1 - dampening, or 1 - rho
  float keep = 1;                // decoupled weight decay
  float b1 = 0, n1 = 0, b2 = 0, n2 = 0;
  float rate = 0, root = 0;  // lr and 1 / sqrt of the second moment, both with their bias taken out
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

/// Sums of squares are kept in so many lanes, element i of an array in lane i modulo their number, and the lanes are
/// added last: an order that does not depend on how many threads work on it.
inline constexpr uint32_t kSquareLanes = 32768;

}  // namespace rondo
