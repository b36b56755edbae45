// Control connections between ranks: the grid's guarantees, for all sizes and for hosts in any order.
#include "bootstrap/mesh_plan.h"
#include "rondo/host_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace rondo {
namespace {

// Blocks of `per_host` ranks, ranks distributed to hosts one by one, or hosts of growing size.
enum class Kind { kBlocks, kDealt, kGrowing };
std::vector<int> hosts_of(int n, int per_host, Kind kind) {
  std::vector<int> hosts;
  const int num_hosts = (n + per_host - 1) / per_host;
  for (int r = 0, host = 0, left = 1; r < n; ++r) {
    switch (kind) {
      case Kind::kBlocks: hosts.push_back(r / per_host); break;
      case Kind::kDealt: hosts.push_back(r % num_hosts); break;
      case Kind::kGrowing:
        hosts.push_back(host);
        if (--left == 0) left = ++host + 1;
        break;
    }
  }
  return hosts;
}

// Requirements of exchanges in blocks: links from each rank of a block to its first, and between the first ones.
void expect_blocks(const MeshPlan& plan, const std::vector<Rank>& ranks) {
  const size_t c = MeshPlan::columns(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i % c != 0) {
      EXPECT_TRUE(plan.linked(ranks[i], ranks[i - i % c]));
      continue;
    }
    for (size_t j = 0; j < i; j += c) EXPECT_TRUE(plan.linked(ranks[i], ranks[j]));
  }
}

void check(int n, int per_host, Kind kind, int most_full) {
  SCOPED_TRACE(::testing::Message() << n << " ranks, " << per_host << " on a host, kind " << static_cast<int>(kind)
                                    << ", full up to " << most_full);
  const std::vector<int> hosts = hosts_of(n, per_host, kind);
  const MeshPlan plan(HostLayout::of(hosts), most_full);
  EXPECT_EQ(plan.nranks(), n);
  EXPECT_EQ(plan.is_full(), n <= most_full);
  std::vector<Rank> sorted = plan.order();
  std::sort(sorted.begin(), sorted.end());
  for (Rank r = 0; r < n; ++r) ASSERT_EQ(sorted[static_cast<size_t>(r)], r);
  if (!plan.is_full()) expect_blocks(plan, plan.order());
  for (const int host : std::set<int>(hosts.begin(), hosts.end())) {
    std::vector<Rank> here;
    for (const Rank r : plan.order())
      if (hosts[static_cast<size_t>(r)] == host) here.push_back(r);
    if (!plan.is_full()) expect_blocks(plan, here);
    if (static_cast<int>(here.size()) > most_full) continue;
    for (const Rank a : here)
      for (const Rank b : here) EXPECT_EQ(plan.linked(a, b), a != b);
  }
  for (Rank a = 0; a < n; ++a) {
    const std::vector<Rank> neighbours = plan.neighbours(a);
    EXPECT_TRUE(std::is_sorted(neighbours.begin(), neighbours.end()));
    for (Rank b = 0; b < n; ++b) {
      EXPECT_EQ(plan.linked(a, b), plan.linked(b, a));
      EXPECT_EQ(std::binary_search(neighbours.begin(), neighbours.end(), b), plan.linked(a, b));
      if (a == b || plan.linked(a, b)) continue;
      const Rank f = plan.corner(a, b), g = plan.corner(b, a);  // two steps through at least one of the two
      EXPECT_TRUE((f >= 0 && plan.linked(a, f) && plan.linked(f, b)) ||
                  (g >= 0 && plan.linked(a, g) && plan.linked(g, b)));
    }
  }
}

TEST(MeshPlan, EverybodyIsTwoStepsAwayAtMost) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 37, 64, 65, 101})
    for (const int per_host : {1, 2, 3, 8, 200})
      for (const Kind kind : {Kind::kBlocks, Kind::kDealt, Kind::kGrowing})
        for (const int most_full : {2, 3, 16, 64}) check(n, per_host, kind, most_full);
}

TEST(MeshPlan, ThousandsOfRanksHaveFewNeighbours) {
  const MeshPlan plan(HostLayout::of(hosts_of(4096, 8, Kind::kDealt)), 64);
  for (Rank r = 0; r < 4096; r += 101) EXPECT_LE(plan.neighbours(r).size(), 2u * 63 + 7);
  const MeshPlan one_host(1000, 64);
  for (Rank r = 0; r < 1000; ++r) EXPECT_LE(one_host.neighbours(r).size(), 2u * 31);
}

}  // namespace
}  // namespace rondo
