// Computes the rows of tensors that each rank writes into a checkpoint. It is a pure function of the plan, so that
// every rank computes it for all ranks.
//
// A rank writes rows that it owns. If replicas own the same rows, each writes an equal share of every tensor's rows.
// Rank 0 writes tensors without elements.
#pragma once

#include <vector>

#include "fsdp/safetensors.h"
#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

struct RowRange {
  size_t unit, tensor;
  uint64_t first_row, num_rows;
};
std::vector<RowRange> row_ranges(const Plan& plan, Rank r);

/// Index of the tensor whose memory this tensor uses: its own index unless it is tied.
size_t first_of_tied(const UnitPlan& unit, const Tensor& tensor);

/// Returns kInvalidArgument if two tensors have the same full name, or a name is not UTF-8.
Status check_names(const Plan& plan);

}  // namespace rondo::fsdp
