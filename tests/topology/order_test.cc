// Ring and tree order: the cheapest by brute force for up to 8 ranks, on machines and on meshes of random links; on
// machines of any size the fewest crossings of slow links; independent of the ranks' numbers.
// optimised
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "topology/hosts.h"
#include "topology/order.h"

namespace rondo::testing {
namespace {

constexpr size_t index_of(Crossing c) { return static_cast<size_t>(c); }

std::vector<Placement> placed(const HostTopology& host, int ranks) {
  auto places = place_ranks(host, {ranks, {}});
  EXPECT_TRUE(places.ok()) << places.status().to_string();
  return places.ok() ? *places : std::vector<Placement>();
}

void expect_permutation_from_0(const std::vector<int>& ring, int n) {
  ASSERT_EQ(ring.size(), static_cast<size_t>(n));
  EXPECT_EQ(ring.front(), 0);
  EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), ring.size());
}

void expect_tree(const TreeOrder& tree, int n, int root) {
  ASSERT_EQ(tree.parents.size(), static_cast<size_t>(n));
  EXPECT_EQ(tree.root, root);
  for (int r = 0; r < n; ++r) {
    int at = r, steps = 0;
    for (; tree.parents[static_cast<size_t>(at)] >= 0 && steps <= n; ++steps) {
      const int parent = tree.parents[static_cast<size_t>(at)];
      const auto& siblings = tree.children[static_cast<size_t>(parent)];
      EXPECT_EQ(std::count(siblings.begin(), siblings.end(), at), 1);
      at = parent;
    }
    EXPECT_EQ(at, root) << "rank " << r;
  }
}

OrderCost cheapest_ring(const Hops& hops) {
  std::vector<int> ring(static_cast<size_t>(hops.num_ranks()));
  std::iota(ring.begin(), ring.end(), 0);
  OrderCost least = ring_cost(hops, ring);
  while (std::next_permutation(ring.begin() + 1, ring.end())) least = std::min(least, ring_cost(hops, ring));
  return least;
}

// Every tree of n ranks, by its Pruefer sequence.
OrderCost cheapest_tree(const Hops& hops) {
  const int n = hops.num_ranks();
  OrderCost least;
  if (n < 2) return least;
  std::vector<int> code(static_cast<size_t>(n) - 2, 0);
  for (bool first = true;; first = false) {
    OrderCost cost;
    std::vector<int> degree(static_cast<size_t>(n), 1);
    for (const int c : code) ++degree[static_cast<size_t>(c)];
    for (const int c : code) {
      const auto leaf = std::find(degree.begin(), degree.end(), 1) - degree.begin();
      cost += hops.at(static_cast<int>(leaf), c);
      --degree[static_cast<size_t>(leaf)];
      --degree[static_cast<size_t>(c)];
    }
    const auto a = std::find(degree.begin(), degree.end(), 1);
    const auto b = std::find(a + 1, degree.end(), 1);
    cost += hops.at(static_cast<int>(a - degree.begin()), static_cast<int>(b - degree.begin()));
    if (first || cost < least) least = cost;
    size_t digit = 0;
    while (digit < code.size() && ++code[digit] == n) code[digit++] = 0;
    if (digit == code.size()) return least;
  }
}

void expect_cheapest(const Hops& hops) {
  const std::vector<int> ring = ring_order(hops);
  expect_permutation_from_0(ring, hops.num_ranks());
  EXPECT_EQ(ring_cost(hops, ring).sums, cheapest_ring(hops).sums);
  const OrderCost least = cheapest_tree(hops);
  for (int root = 0; root < hops.num_ranks(); ++root) {
    const TreeOrder tree = tree_order(hops, root);
    expect_tree(tree, hops.num_ranks(), root);
    EXPECT_EQ(tree_cost(hops, tree).sums, least.sums);
  }
}

Hops random_mesh(int n, uint32_t seed, int kinds, int distances) {
  std::mt19937 random(seed);
  Hops hops(n);
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      hops.set(a, b,
               {static_cast<Crossing>(random() % static_cast<unsigned>(kinds)),
                static_cast<uint32_t>(1 + random() % static_cast<unsigned>(distances))});
  return hops;
}

// The same places with other rank numbers.
std::vector<Placement> shuffled(std::vector<Placement> places, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random() % i]);
  return places;
}

TEST(Order, IsTheCheapestOfAllOnMachines) {
  for (const Grid& grid :
       {Grid{2, 1, 1, 8, 2}, Grid{1, 4, 2, 2, 2}, Grid{2, 2, 2, 1, 1}, Grid{4, 1, 1, 2, 1}, Grid{1, 1, 1, 3, 2}})
    for (int n = 1; n <= 8; ++n)
      for (uint32_t seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(::testing::Message() << grid.packages << " packages, " << n << " ranks, shuffle " << seed);
        const HostTopology host = grid_host(grid);
        expect_cheapest(Hops(host, shuffled(placed(host, n), seed)));
      }
}

TEST(Order, IsTheCheapestOfAllOnMeshes) {
  for (int n = 1; n <= 8; ++n)
    for (uint32_t seed = 0; seed < 6; ++seed)
      for (const auto& [kinds, distances] : {std::pair{2, 1}, {3, 2}, {8, 30}}) {
        SCOPED_TRACE(::testing::Message() << n << " ranks, seed " << seed << ", " << kinds << " kinds");
        expect_cheapest(random_mesh(n, seed, kinds, distances));
      }
}

// A group of ranks nearer to one another than to the rest: k such groups are joined by k hops of a ring (2 for two) and
// by k - 1 of a tree.
void expect_least_crossings(const HostTopology& host, const std::vector<Placement>& places) {
  const Hops hops(host, places);
  const int n = hops.num_ranks();
  const std::vector<int> ring = ring_order(hops);
  expect_permutation_from_0(ring, n);
  const TreeOrder tree = tree_order(hops, n / 2);
  expect_tree(tree, n, n / 2);
  const auto in_ring = ring_crossings(hops, ring), in_tree = tree_crossings(hops, tree);
  for (const Crossing slow : {Crossing::kSocketLink, Crossing::kNumaLink, Crossing::kNumaNode}) {
    std::set<int> groups;  // each named by its first rank
    for (int r = 0; r < n; ++r) {
      int first = r;
      for (int q = 0; q < r; ++q)
        if (hops.at(q, r).crossing < slow) first = std::min(first, q);
      groups.insert(first);
    }
    int of_ring = 0, of_tree = 0;
    for (size_t c = index_of(slow); c < kNumCrossings; ++c) of_ring += in_ring[c], of_tree += in_tree[c];
    const auto k = static_cast<int>(groups.size());
    EXPECT_EQ(of_ring, k == 1 ? 0 : k) << crossing_name(slow);
    EXPECT_EQ(of_tree, k - 1) << crossing_name(slow);
  }
  for (const auto& children : tree.children)  // two at each level: packages, nodes, caches, cores, PUs
    EXPECT_LE(children.size(), 10u);
}

TEST(Order, CrossesSlowLinksAsSeldomAsCanBeForAnyNumberOfRanks) {
  for (const Grid& grid :
       {Grid{2, 1, 1, 8, 2}, Grid{1, 4, 2, 4, 2}, Grid{2, 4, 2, 4, 1}, Grid{4, 2, 1, 3, 1}, Grid{3, 1, 1, 1, 1}}) {
    const HostTopology host = grid_host(grid);
    for (int n = 1; n <= 33; ++n) {
      SCOPED_TRACE(::testing::Message() << grid.packages << " x " << grid.nodes << " nodes, " << n << " ranks");
      expect_least_crossings(host, placed(host, n));
      expect_least_crossings(host, shuffled(placed(host, n), 7));
    }
    expect_least_crossings(host, shuffled(placed(host, 128), 3));
  }
}

TEST(Order, FollowsThePlacesInTheirOrder) {
  const HostTopology host = grid_host({2, 2, 2, 4, 1});
  for (const int n : {5, 8, 12, 13, 32}) {
    std::vector<int> natural(static_cast<size_t>(n));
    std::iota(natural.begin(), natural.end(), 0);
    EXPECT_EQ(ring_order(Hops(host, placed(host, n))), natural) << "neighbours in rank are neighbours in place";
  }
}

TEST(Order, TwoSocketsAreCrossedThereAndBack) {
  const HostTopology host = grid_host({2, 1, 1, 8, 2});
  const Hops hops(host, placed(host, 8));
  const auto ring = ring_crossings(hops, ring_order(hops));
  EXPECT_EQ(ring[index_of(Crossing::kSocketLink)], 2);
  EXPECT_EQ(ring[index_of(Crossing::kCache)], 6);
  const TreeOrder tree = tree_order(hops);
  EXPECT_EQ(tree_crossings(hops, tree)[index_of(Crossing::kSocketLink)], 1);
  EXPECT_EQ(tree.children[0], (std::vector<int>{4, 1, 2})) << "the message over the slow link must start first";
}

// Four sockets in a square. According to firmware the diagonals 0-1 and 2-3 are farther: the ring goes around the
// square, not by number.
TEST(Order, GoesAroundASquareOfSockets) {
  HostTopology host = grid_host({4, 1, 1, 8, 1});
  const uint32_t near = 20, far = 30;
  host.node_distances = {10,   far,  near, near,  //
                         far,  10,   near, near,  //
                         near, near, 10,   far,   //
                         near, near, far,  10};
  for (const int n : {4, 8, 12, 16, 32}) {
    const Hops hops(host, placed(host, n));
    const std::vector<int> ring = ring_order(hops);
    EXPECT_EQ(ring_crossings(hops, ring)[index_of(Crossing::kSocketLink)], 4) << n;
    EXPECT_EQ(ring_cost(hops, ring).sums[0], 4 * near) << n << " ranks";
  }
}

// For sizes beyond exact search the result must be close to the optimum, and never worse than rank order.
TEST(Order, OfManyRanksOnAMeshIsNoWorseThanByRank) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const Hops hops = random_mesh(24, seed, 3, 2);
    const std::vector<int> ring = ring_order(hops);
    expect_permutation_from_0(ring, 24);
    std::vector<int> by_rank(24);
    std::iota(by_rank.begin(), by_rank.end(), 0);
    EXPECT_LT(ring_cost(hops, ring), ring_cost(hops, by_rank));
    EXPECT_EQ(ring_crossings(hops, ring)[2], 0) << "a third of the links are slow: a way without any is found";
  }
}

// Ranks compute it separately and must agree: numbers may change, the cost may not; equal input gives equal output.
TEST(Order, IsTheSameForTheSamePlaces) {
  const HostTopology host = grid_host({2, 2, 1, 4, 2});
  for (const int n : {3, 11, 12, 13, 33}) {
    const auto places = placed(host, n);
    const Hops hops(host, places), again(host, places), other(host, shuffled(places, 5));
    EXPECT_EQ(ring_order(hops), ring_order(again));
    EXPECT_EQ(tree_order(hops).parents, tree_order(again).parents);
    EXPECT_EQ(ring_cost(other, ring_order(other)).sums, ring_cost(hops, ring_order(hops)).sums);
    EXPECT_EQ(tree_cost(other, tree_order(other)).sums, tree_cost(hops, tree_order(hops)).sums);
  }
}

TEST(Order, OfOneRankHasNoHops) {
  const HostTopology host = grid_host({});
  const Hops hops(host, placed(host, 1));
  EXPECT_EQ(ring_order(hops), std::vector<int>{0});
  EXPECT_EQ(ring_crossings(hops, ring_order(hops)), (std::array<int, kNumCrossings>{}));
  EXPECT_EQ(tree_order(hops).parents, std::vector<int>{-1});
}

}  // namespace
}  // namespace rondo::testing
