// The fault matrix: code shared by its test programs. Cases come from the registry, so a new algorithm is covered at
// once.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "rondo/recorder.h"
#include "support/fault_case.h"
#include "support/shared.h"

namespace rondo::testing {

class FaultMatrix : public ::testing::TestWithParam<FaultCase> {
 protected:
  static void TearDownTestSuite() { print_fault_table(); }
};

TEST_P(FaultMatrix, EndsInAStatusAndTheSurvivorsGoOn) { run_fault_case(GetParam()); }

/// All rows, and messages between two ranks, as cases of `fault`. Moments, kinds of calls, sizes, victims and roots
/// take turns, starting at `salt`.
inline std::vector<FaultCase> cases_of_every_row(World world, Fault fault, const std::vector<Moment>& moments,
                                                 size_t salt) {
  constexpr Calls kCalls[] = {Calls::kBlocking, Calls::kBlocking, Calls::kAsync, Calls::kGrouped};
  std::vector<FaultCase> cases;
  size_t i = salt;
  auto add = [&](const Algorithm* a) {
    FaultCase c{world, fault, moments[i % moments.size()], a != nullptr ? kCalls[i % 4] : Calls::kMessages, a};
    c.large = (i / 2) % 2 != 0;
    c.victim = static_cast<Rank>((i + i / 4) % kFaultRanks);
    c.root = static_cast<Rank>(i / 3 % kFaultRanks);
    cases.push_back(c);
    i += 1;
  };
  for (const Algorithm& a : all_algorithms())
    if (!a.for_hosts) add(&a);  // on one host they send the same messages as others
  add(nullptr);
  if (kSanitized)  // a tenth of them
    for (size_t k = cases.size(); k-- > 0;)
      if ((k + salt) % 10 != 0) cases.erase(cases.begin() + static_cast<ptrdiff_t>(k));
  return cases;
}

/// Replaces victims that do not write to other ranks.
inline void let_victims_write(std::vector<FaultCase>& cases) {
  for (FaultCase& c : cases) {
    if (c.algorithm == nullptr) continue;
    auto writes = [&](Rank r) {
      const RankSchedule s = record_rank(*c.algorithm, r, kFaultRanks, c.root);
      return std::any_of(s.lanes.begin(), s.lanes.end(), [](const Lane& lane) {
        return std::any_of(lane.begin(), lane.end(),
                           [](const Instruction& x) { return x.has(kVerbSend) && !x.is(kFlagDirect); });
      });
    };
    while (!writes(c.victim)) c.victim = (c.victim + 1) % kFaultRanks;
  }
}

inline void append(std::vector<FaultCase>& to, const std::vector<FaultCase>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

inline std::string fault_case_name(const ::testing::TestParamInfo<FaultCase>& info) {
  return std::to_string(info.index) + "_" + name_of(info.param);
}

}  // namespace rondo::testing
