// Count vectors and matrices over which variable counts are proven. Internal to the checker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/types.h"

namespace rondo::check {

struct Counts {
  std::string name;  // for people
  /// Elements of part j; of an all_to_all what rank r has for rank j, at r * nranks + j.
  std::vector<uint64_t> part_elems;
};

/// The longest part of any of count_patterns, in elements.
inline constexpr uint64_t kLongestPartElems = 5;

/// Empty parts, one giant, ragged ones, ranks that have nothing: for a vector or matrix of up to 4 counts every
/// combination of {0, 1, 3}, else the tell-tale ones, of them fewer above 16 ranks. Deterministic.
std::vector<Counts> count_patterns(Collective collective, int nranks);

}  // namespace rondo::check
