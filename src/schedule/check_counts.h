// Count vectors and matrices for proofs of variable counts. Internal to the checker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/types.h"

namespace rondo::check {

struct Counts {
  std::string name;  // for messages
  /// Elements of part j; for all_to_all the elements from rank r to rank j, at r * nranks + j.
  std::vector<uint64_t> part_elems;
};

/// The longest part of any of count_patterns, in elements.
inline constexpr uint64_t kLongestPartElems = 5;

/// Empty parts, one giant part, ragged parts, ranks without data. For a vector or matrix of up to 4 counts every
/// combination of {0, 1, 3}, else typical ones, fewer above 16 ranks. Deterministic.
std::vector<Counts> count_patterns(Collective collective, int nranks);

}  // namespace rondo::check
