// The order of rings: the cheapest by brute force for up to 8 ranks, on machines and on meshes of random links; on
// machines of any size the fewest crossings of slow links; independent of the ranks' numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "topology/host_text.h"
#include "topology/hosts.h"
#include "topology/order.h"

namespace rondo::testing {
namespace {

constexpr size_t index_of(Crossing c) { return static_cast<size_t>(c); }

void expect_permutation_from_0(const std::vector<int>& ring, int n) {
  ASSERT_EQ(ring.size(), static_cast<size_t>(n));
  EXPECT_EQ(ring.front(), 0);
  EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), ring.size());
}

OrderCost ring_cost(const Hops& hops, const std::vector<int>& ring) {
  OrderCost cost;
  for (size_t i = 0; i < ring.size() && ring.size() > 1; ++i) cost += hops.at(ring[i], ring[(i + 1) % ring.size()]);
  return cost;
}

OrderCost cheapest_ring(const Hops& hops) {
  std::vector<int> ring(static_cast<size_t>(hops.num_ranks()));
  std::iota(ring.begin(), ring.end(), 0);
  OrderCost least = ring_cost(hops, ring);
  while (std::next_permutation(ring.begin() + 1, ring.end())) least = std::min(least, ring_cost(hops, ring));
  return least;
}

void expect_cheapest(const Hops& hops) {
  const std::vector<int> ring = ring_order(hops);
  expect_permutation_from_0(ring, hops.num_ranks());
  EXPECT_EQ(ring_cost(hops, ring).sums, cheapest_ring(hops).sums);
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
      for (const auto& [kinds, distances] : {std::pair{2, 1}, {3, 2}, {5, 30}}) {
        SCOPED_TRACE(::testing::Message() << n << " ranks, seed " << seed << ", " << kinds << " kinds");
        expect_cheapest(random_mesh(n, seed, kinds, distances));
      }
}

// A group of ranks nearer to one another than to the rest: k such groups are joined by k hops (2 for two).
void expect_least_crossings(const HostTopology& host, const std::vector<Placement>& places) {
  const Hops hops(host, places);
  const int n = hops.num_ranks();
  const std::vector<int> ring = ring_order(hops);
  expect_permutation_from_0(ring, n);
  const auto in_ring = ring_crossings(hops, ring);
  for (const Crossing slow : {Crossing::kSocketLink, Crossing::kNumaLink, Crossing::kNumaNode}) {
    std::set<int> groups;  // each named by its first rank
    for (int r = 0; r < n; ++r) {
      int first = r;
      for (int q = 0; q < r; ++q)
        if (hops.at(q, r).crossing < slow) first = std::min(first, q);
      groups.insert(first);
    }
    int of_ring = 0;
    for (size_t c = index_of(slow); c < kNumCrossings; ++c) of_ring += in_ring[c];
    const auto k = static_cast<int>(groups.size());
    EXPECT_EQ(of_ring, k == 1 ? 0 : k) << crossing_name(slow);
  }
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

// Ranks compute it separately and must agree: numbers may change, the cost may not; equal input gives equal output.
TEST(Order, IsTheSameForTheSamePlaces) {
  const HostTopology host = grid_host({2, 2, 1, 4, 2});
  for (const int n : {3, 11, 12, 13, 33}) {
    const auto places = placed(host, n);
    const Hops hops(host, places), again(host, places), other(host, shuffled(places, 5));
    EXPECT_EQ(ring_order(hops), ring_order(again));
    EXPECT_EQ(ring_cost(other, ring_order(other)).sums, ring_cost(hops, ring_order(hops)).sums);
  }
}

TEST(Order, OfOneRankHasNoHops) {
  const HostTopology host = grid_host({});
  const Hops hops(host, placed(host, 1));
  EXPECT_EQ(ring_order(hops), std::vector<int>{0});
  EXPECT_EQ(ring_crossings(hops, ring_order(hops)), (std::array<int, kNumCrossings>{}));
}

}  // namespace
}  // namespace rondo::testing
