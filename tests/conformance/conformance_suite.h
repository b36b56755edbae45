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

TEST_P(Conformance, AllocatedMemory) {
  std::vector<Case> cases = product_cases(nranks());
  std::erase_if(cases, [](const Case& c) {  // heap memory has covered the rest
    return c.algorithm != nullptr && !(c.algorithm->direct || (c.algorithm->name == "ring" && c.variant < 2));
  });
  run_cases(world(), nranks(), Memory::kAlloc, cases);
}

TEST_P(Conformance, SeveralMebibytes) {
  const uint64_t total_bytes = kSanitized ? 300000 : nranks() > 8 ? 1 << 20 : 3 << 20;
  run_cases(world(), nranks(), Memory::kHeap, large_cases(nranks(), total_bytes));
  run_cases(world(), nranks(), Memory::kAlloc, large_cases(nranks(), total_bytes));
}

inline std::string conformance_name(const ::testing::TestParamInfo<std::tuple<World, int>>& info) {
  return std::to_string(std::get<1>(info.param)) + "_" + world_name(std::get<0>(info.param));
}

}  // namespace rondo::testing
