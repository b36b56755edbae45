// The order of a host's ranks in a ring with the fewest crossings of slow links between their cores. Pure functions of
// the hops between places: ranks that start from equal places get equal orders.
//
// Cost. A hop crosses one kind of link, its slowest (Crossing), at a distance. Orders are compared by the sum of
// distances over the slowest kind of link, then over the next slower one, and so on: one hop less between sockets
// outweighs everything within them. With equal distances this is the number of crossings.
//
// Ring: a closed path through all ranks, from rank 0. Up to kMostExact ranks it is the cheapest (dynamic programming
// over subsets, Held and Karp 1962); among equals, the first in rank order. Beyond, the ranks are clustered by
// nearness and visited cluster by cluster. If nearness is a tree (caches, NUMA nodes, packages), this is the cheapest
// too: k groups at a level need k hops (2 groups need 2: there and back). In a mesh of sockets, up to kMostExact
// clusters are visited in their cheapest order.
//
//      0 - 1 - 2 - 3 === 4 - 5 - 6 - 7     a ring over 2 sockets of 4
//      ||                            ||    === crosses the link between sockets
//      \\============================//
//
// Thread safety: pure.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "topology/places.h"

namespace rondo {

/// The slowest link between the cores of two ranks, slower ones later.
enum class Crossing : uint8_t {
  kNothing,     // one core
  kCache,       // a shared cache
  kNumaNode,    // the memory of one NUMA node
  kNumaLink,    // between NUMA nodes of one package
  kSocketLink,  // between packages
};
inline constexpr size_t kNumCrossings = 5;

struct Hop {
  Crossing crossing = Crossing::kNothing;
  /// Between NUMA nodes the firmware's value, else 1; cache: its level.
  uint32_t distance = 1;
  auto operator<=>(const Hop&) const = default;
};

/// All pairs of n ranks. Symmetric.
class Hops {
 public:
  explicit Hops(int num_ranks)
      : n_(num_ranks), hops_(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_ranks)) {}
  Hops(const HostTopology& host, std::span<const Placement> places);
  int num_ranks() const { return n_; }
  const Hop& at(int a, int b) const {
    return hops_[static_cast<size_t>(a) * static_cast<size_t>(n_) + static_cast<size_t>(b)];
  }
  void set(int a, int b, Hop hop) {
    hops_[static_cast<size_t>(a) * static_cast<size_t>(n_) + static_cast<size_t>(b)] = hop;
    hops_[static_cast<size_t>(b) * static_cast<size_t>(n_) + static_cast<size_t>(a)] = hop;
  }

 private:
  int n_;
  std::vector<Hop> hops_;
};

/// Sums of distances, the slowest kind of link first, compared as described above.
struct OrderCost {
  std::array<int64_t, kNumCrossings> sums{};
  auto operator<=>(const OrderCost&) const = default;
  OrderCost& operator+=(const Hop& hop) {
    sums[kNumCrossings - 1 - static_cast<size_t>(hop.crossing)] += static_cast<int64_t>(hop.distance);
    return *this;
  }
};

inline constexpr int kMostExact = 12;

/// The ranks in ring order, rank 0 first; the last one is followed by rank 0. O(2^n n^2) up to kMostExact ranks, then
/// O(n^2).
std::vector<int> ring_order(const Hops& hops);

}  // namespace rondo
