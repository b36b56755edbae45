// Which rows of which tensors a rank writes into a checkpoint: a pure function of the plan, so that every rank knows it
// of all.
//
// Those that it owns; where replicas own the same, each takes an equal share of the rows of every tensor. A tensor
// without elements is rank 0's.
#pragma once

#include <string>
#include <vector>

#include "fsdp/safetensors.h"
#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

struct Stretch {
  size_t unit, tensor;
  uint64_t first_row, num_rows;
};
std::vector<Stretch> stretches(const Plan& plan, Rank r);

/// Index of the tensor whose memory a tied one has; its own otherwise.
size_t first_of_tied(const UnitPlan& unit, const Tensor& tensor);

/// kInvalidArgument when two tensors have one full name, or one is no UTF-8.
Status check_names(const Plan& plan);

}  // namespace rondo::fsdp
