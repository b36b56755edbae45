// PlanRequest: the properties of a call that its plan depends on. They are equal on all ranks, or belong to a pair of
// ranks that check each other (the counts of all_to_all_v, the peer of send and recv).
#pragma once

#include <cstdint>
#include <optional>

#include "algorithms/registry.h"
#include "schedule/extent.h"
#include "trace/operation_record.h"

namespace rondo {

/// A call with a count for each rank. A side with one part per rank has nranks entries, the other one has one.
struct VariableCounts {
  PartExtents in, out;
  bool packed = true;        // no offsets: every rank knows the position of every part
  bool pairwise = false;     // all_to_all_v: a rank knows only its own row and column
  uint64_t agreed_hash = 0;  // of the values that all ranks must agree on
  friend bool operator==(const VariableCounts&, const VariableCounts&) = default;
};

struct PlanRequest {
  Collective collective = Collective::kAllReduce;
  Dtype dtype = Dtype::kFloat32;  // of the input
  Op op = Op::kSum;
  uint8_t row = 0;                // row_index()
  Rank root = 0;                  // send, recv: the peer
  uint64_t count_elems = 0;       // variable counts: their sum if all ranks know it, else 0
  const Algorithm* algorithm = nullptr;  // nullptr: free choice
  uint32_t promises = 0;
  // Calls on devices: thread blocks of the launch, within the communicator's; 0: the communicator's.
  uint16_t min_blocks = 0, max_blocks = 0;
  const VariableCounts* counts = nullptr;  // borrowed; nullptr: the same count everywhere

  TypeRow types() const { return row_at(row, dtype); }
  friend bool operator==(const PlanRequest& a, const PlanRequest& b) {
    return a.collective == b.collective && a.dtype == b.dtype && a.op == b.op && a.row == b.row && a.root == b.root &&
           a.count_elems == b.count_elems && a.algorithm == b.algorithm && a.promises == b.promises &&
           a.min_blocks == b.min_blocks && a.max_blocks == b.max_blocks &&
           (a.counts == b.counts || (a.counts != nullptr && b.counts != nullptr && *a.counts == *b.counts));
  }
};

}  // namespace rondo
