// Conformance: every registered algorithm x dtype x op x placement x size gives the oracle's bits, for every number of
// ranks.
//
// One communicator runs all cases of a number of ranks in a shuffled order without barriers, so that ranks run ahead
// into the next operation, and algorithms that share connections follow one another. The programs that include this run
// ranks as threads or as processes. Under a sanitizer a reduced list runs.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "conformance/conformance_cases.h"

namespace rondo::testing {

/// World, rank count.
class Conformance : public ::testing::TestWithParam<std::tuple<World, int>> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(world()); !why.empty()) GTEST_SKIP() << why;
  }
  World world() const { return std::get<0>(GetParam()); }
  int nranks() const { return std::get<1>(GetParam()); }
};

TEST_P(Conformance, EveryAlgorithmTypeOpAndSize) {
  run_cases(world(), nranks(), Memory::kHeap, product_cases(nranks()));
}

// Those of direct algorithms, whose messages allocated memory changes; a few of the ring, and the planner's choice.
inline std::vector<Case> for_allocated_memory(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& c) {
    return c.algorithm != nullptr && !(c.algorithm->direct || (c.algorithm->name == "ring" && c.variant < 2));
  });
  return cases;
}

TEST_P(Conformance, AllocatedMemory) {
  run_cases(world(), nranks(), Memory::kAlloc, for_allocated_memory(product_cases(nranks())));
}

TEST_P(Conformance, SeveralMebibytes) {
  const uint64_t total_bytes = kSanitized ? 300000 : nranks() > 8 ? 1 << 20 : 3 << 20;
  const std::vector<Case> cases = large_cases(nranks(), total_bytes);
  run_cases(world(), nranks(), Memory::kHeap, cases);
  run_cases(world(), nranks(), Memory::kAlloc, for_allocated_memory(cases));
}

inline std::string conformance_name(const ::testing::TestParamInfo<std::tuple<World, int>>& info) {
  return std::to_string(std::get<1>(info.param)) + "_" + world_name(std::get<0>(info.param));
}

}  // namespace rondo::testing
