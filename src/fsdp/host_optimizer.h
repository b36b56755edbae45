// Optimizer kernels for the host. The CUDA kernels are in fsdp/optimizer_kernels.h. Thread safety: pure functions.
#pragma once

#include "fsdp/optimizer_rules.h"
#include "rondo/fsdp/optimizer.h"

namespace rondo {

/// step: counted from 1.
RuleConstants rule_constants(const fsdp::OptimizerConfig& config, int64_t step, float scale);

/// to[i] += from[i].
void add_floats(uint64_t n, float* to, const float* from);
void scale_floats(uint64_t n, float factor, float* x);
/// lanes: kSquareLanes sums. The square of element i is added to lane i % kSquareLanes.
void add_squares(uint64_t n, const float* x, double* lanes);

}  // namespace rondo
