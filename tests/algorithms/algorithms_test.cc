// labels: unit proof
// timeout: 300
// Every row of the registry is proven for 1..33 ranks and all roots (beyond 16 ranks only some), by itself and before
// every other row, with its stated costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include "algorithms/recursive_doubling.h"
#include "algorithms/registry.h"
#include "algorithms/row_label.h"
#include "algorithms/tree.h"
#include "protocol/fifo.h"
#include "schedule/checker.h"

namespace rondo {
namespace {

class EveryAlgorithm : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, IsProvenForOneToThirtyThreeRanks) {
  for (int n = 1; n <= 33; ++n) {
    const CheckReport report = check_roots(GetParam(), n);
    EXPECT_TRUE(report.ok) << n << " ranks: " << report.reason;
    EXPECT_LE(report.fifo_depth, static_cast<int>(kRingMessages)) << n << " ranks: no room is sure for more";
    EXPECT_LE(report.fifo_depth_sliced, 5) << n << " ranks: more than one message beyond a chunk's four";
  }
}

TEST_P(EveryAlgorithm, IsProvenBeyondExactSets) {
  for (int n : {64, 65, 100}) {
    const CheckReport report = check_roots(GetParam(), n, {1, 1});
    EXPECT_TRUE(report.ok) << n << " ranks: " << report.reason;
  }
}

TEST_P(EveryAlgorithm, IsRightAmongManyRanks) {
  const CheckReport report = check_algorithm(GetParam(), 257, CheckOptions::fingerprints());
  EXPECT_TRUE(report.ok) << report.reason;
}

TEST_P(EveryAlgorithm, MayRunAheadIntoEveryOther) {
  for (const Algorithm& next : all_algorithms())
    for (int n = 1; n <= 6; ++n) {
      const Rank root = collective_is_rooted(GetParam().collective) ? n / 2 : 0;  // differs from the next one's
      const CheckReport report = check_pair(GetParam(), next, n, {}, root);
      EXPECT_TRUE(report.ok) << row_label(next) << ", " << n << " ranks: " << report.reason;
    }
}

TEST_P(EveryAlgorithm, RecordsTheSameScheduleEveryTime) {
  for (int n : {1, 2, 7})
    for (Rank r = 0; r < n; ++r) {
      const RankSchedule a = record_rank(GetParam(), r, n, n / 2), b = record_rank(GetParam(), r, n, n / 2);
      EXPECT_EQ(a.lanes, b.lanes);
      EXPECT_EQ(a.port_sets, b.port_sets);
    }
}

TEST_P(EveryAlgorithm, SharesEqualPortSets) {
  for (Rank r = 0; r < 9; ++r) {
    const RankSchedule s = record_rank(GetParam(), r, 9);
    for (size_t i = 0; i < s.port_sets.size(); ++i)
      for (size_t k = i + 1; k < s.port_sets.size(); ++k) EXPECT_NE(s.port_sets[i], s.port_sets[k]);
  }
}

TEST_P(EveryAlgorithm, KeepsPartialSumsOutOfTheCallersOutput) {
  if (GetParam().name == "recursive_doubling") return;  // the exception: the planner does not use it for mixed types
  for (int n = 2; n <= 9; ++n)
    for (Rank r = 0; r < n; ++r)
      for (const Lane& lane : record_rank(GetParam(), r, n).lanes)
        for (const Instruction& i : lane)
          if (i.has(kVerbSrc) && i.has(kVerbRecv)) {
            EXPECT_NE(i.src_buffer(), Buffer::kOut) << n << " ranks, rank " << r;
            EXPECT_TRUE(!i.has(kVerbDst) || i.dst_buffer() == Buffer::kScratch || i.is(kFlagFinal));
          }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryAlgorithm,
                         ::testing::ValuesIn(all_algorithms().begin(), all_algorithms().end()),
                         [](const auto& info) { return row_label(info.param); });

TEST(Registry, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const Algorithm& a : all_algorithms()) {
    EXPECT_TRUE(names.insert(row_label(a)).second) << row_label(a);
    EXPECT_EQ(find_algorithm(a.collective, a.name), &a);
    EXPECT_FALSE(a.summary.empty());
  }
  EXPECT_EQ(find_algorithm(Collective::kAllReduce, "no_such_algorithm"), nullptr);
}

// The costs again, by closed formulae. The checker measures the same, so neither side can drift unnoticed.
void expect_cost(Collective collective, const char* name, int n, int64_t steps, int64_t sent, int64_t of) {
  const Algorithm* a = find_algorithm(collective, name);
  ASSERT_NE(a, nullptr) << name;
  const Cost cost = a->cost(n);
  EXPECT_EQ(cost.steps, steps) << name << ", " << n << " ranks";
  EXPECT_EQ(cost.sent_num * of, sent * cost.sent_den) << name << ", " << n << " ranks";
}

TEST(Costs, EqualTheFormulae) {
  for (int n = 2; n <= 64; ++n) {
    expect_cost(Collective::kAllReduce, "ring", n, 2 * (n - 1), 2 * (n - 1), n);
    expect_cost(Collective::kReduceScatter, "ring", n, n - 1, n - 1, n);
    expect_cost(Collective::kAllGather, "ring", n, n - 1, n - 1, n);
    expect_cost(Collective::kAllReduce, "one_shot", n, 1, 1, 1);
    expect_cost(Collective::kAllReduce, "two_shot", n, 2, 1, 1);
    for (const char* name : {"one_shot", "two_shot"}) {
      expect_cost(Collective::kReduceScatter, name, n, 1, n - 1, n);
      expect_cost(Collective::kAllGather, name, n, 1, 1, n);
    }
    for (const Collective c : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather})
      expect_cost(c, "direct", n, 2, 0, 1);
    const int log = std::bit_width(static_cast<unsigned>(n)) - 1, power = 1 << log;
    if (n == power) expect_cost(Collective::kAllReduce, "recursive_doubling", n, log, log, 1);
    if (n > power)
      expect_cost(Collective::kAllReduce, "recursive_doubling", n, log + (2 * n > 3 * power ? 2 : 1), log + 1, 1);
    const int p = power, pairs = n - power;
    if (n == p) {
      expect_cost(Collective::kAllReduce, "halving_doubling", n, 2 * log, 2 * (n - 1), n);
      expect_cost(Collective::kReduceScatter, "halving_doubling", n, log, n - 1, n);
      expect_cost(Collective::kAllGather, "halving_doubling", n, log, n - 1, n);
    } else {
      expect_cost(Collective::kAllReduce, "halving_doubling", n, 2 * log + 2, 3 * p - 2, p);
      expect_cost(Collective::kReduceScatter, "halving_doubling", n, log + (2 * pairs > p ? 2 : 1), n, n);
    }
    const int rounds = std::bit_width(static_cast<unsigned>(n - 1));  // ceil(log2 N)
    expect_cost(Collective::kAllReduce, "circulant", n, 2 * rounds, 2 * (n - 1), n);
    expect_cost(Collective::kReduceScatter, "circulant", n, rounds, n - 1, n);
    expect_cost(Collective::kAllGather, "circulant", n, rounds, n - 1, n);
    for (const Collective c : {Collective::kBroadcast, Collective::kReduce}) {
      expect_cost(c, "ring", n, n - 1, 1, 1);
      expect_cost(c, "one_shot", n, 1, 1, 1);
      expect_cost(c, "pull", n, 2, 0, 1);
      const Cost tree = find_algorithm(c, "tree")->cost(n);
      EXPECT_LE(tree.steps, 2 + std::bit_width(static_cast<unsigned>(n - 1))) << n;
      EXPECT_EQ(tree.sent_num, tree.sent_den) << n;
    }
    expect_cost(Collective::kReduce, "two_shot", n, 2, 1, 1);
    expect_cost(Collective::kAllToAll, "pairwise", n, n - 1, n - 1, n);
    expect_cost(Collective::kAllToAll, "one_shot", n, 1, n - 1, n);
    expect_cost(Collective::kGather, "linear", n, 1, 1, n);
    expect_cost(Collective::kScatter, "linear", n, 1, n - 1, n);
    expect_cost(Collective::kScatter, "binomial", n, log, n - 1, n);
    if (n == p) expect_cost(Collective::kGather, "binomial", n, log, n / 2, n);
    expect_cost(Collective::kBarrier, "one_shot", n, 1, 0, 1);
    expect_cost(Collective::kBarrier, "dissemination", n, rounds, 0, 1);
    const Cost tree = find_algorithm(Collective::kAllReduce, "tree")->cost(n);
    const int ceil_log = std::bit_width(static_cast<unsigned>(n - 1));
    EXPECT_LE(tree.steps, 2 * (ceil_log + 1)) << n;
    EXPECT_LE(tree.sent_num, 2 * tree.sent_den) << n;
  }
}

TEST(Costs, OneRankSendsNothing) {
  for (const Algorithm& a : all_algorithms()) {
    EXPECT_EQ(cost_of(a, 1).steps, 0) << row_label(a);
    EXPECT_EQ(cost_of(a, 1).sent_num, 0) << row_label(a);
    EXPECT_GT(cost_of(a, 1).sent_den, 0) << row_label(a);
  }
}

TEST(Tree, ParentsAndChildrenAgree) {
  for (int n = 2; n <= 130; ++n)
    for (int tree = 0; tree < 2; ++tree) {
      int roots = 0;
      for (Rank r = 0; r < n; ++r) {
        const algorithms::TreeNode node(r, n, tree);
        for (int k = 0; k < node.num_children; ++k)
          EXPECT_EQ(algorithms::TreeNode(node.children[k], n, tree).parent, r);
        if (node.parent < 0) {
          ++roots;
          continue;
        }
        const algorithms::TreeNode parent(node.parent, n, tree);
        EXPECT_EQ(std::count(parent.children, parent.children + parent.num_children, r), 1);
      }
      EXPECT_EQ(roots, 1) << n << " ranks, tree " << tree;
    }
}

TEST(Tree, NoRankIsInnerInBothWhenEven) {
  for (int n = 2; n <= 130; ++n) {
    int twice = 0;
    for (Rank r = 0; r < n; ++r) {
      const int children = algorithms::TreeNode(r, n, 0).num_children + algorithms::TreeNode(r, n, 1).num_children;
      EXPECT_LE(children, 2);
      twice += algorithms::TreeNode(r, n, 0).num_children != 0 && algorithms::TreeNode(r, n, 1).num_children != 0;
    }
    EXPECT_EQ(twice, n % 2) << n;
  }
}

TEST(RecursiveDoubling, SeatsPairUp) {
  using algorithms::RecursiveDoubling;
  for (int n = 1; n <= 70; ++n)
    for (Rank r = 0; r < n; ++r) {
      const RecursiveDoubling self(r, n);
      if (self.sits_out()) continue;
      for (int round = 0; round < RecursiveDoubling::rounds(n); ++round) {
        const RecursiveDoubling partner(self.partner(round), n);
        EXPECT_FALSE(partner.sits_out());
        EXPECT_EQ(partner.partner(round), r);
      }
    }
}

}  // namespace
}  // namespace rondo
