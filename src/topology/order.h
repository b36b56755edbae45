// The order of ranks in rings and trees with the fewest crossings of slow links. Pure functions of the hops between
// places: ranks that start from equal places get equal orders.
//
// Cost. A hop crosses one kind of link, its slowest (Crossing), at a distance. Orders are compared by the sum of
// distances over the slowest kind of link, then over the next slower one, and so on: one hop less between sockets
// outweighs everything within them. With equal distances this is the number of crossings.
//
// Ring: a closed path through all ranks, from rank 0. Up to kMostExact ranks it is the cheapest (dynamic programming
// over subsets, Held and Karp 1962); among equals, the first in rank order. Beyond, the ranks are clustered by
// nearness, visited cluster by cluster, and then improved by 2-opt and by moving short ranges. If nearness is a tree
// (caches, NUMA nodes, packages, PCIe switches), the visit is already the cheapest: k groups at a level need k hops (2
// groups need 2: there and back).
//
// Tree: always the cheapest, a minimum spanning tree: k groups are joined by k - 1 hops. Of these it is a shallow one:
// within each cluster the next smaller clusters form a binary tree, led by the cluster's root.
//
//        ring over 2 sockets of 4        tree
//      0 - 1 - 2 - 3 === 4 - 5 - 6 - 7   0 --- 1 --- 3      === crosses the link between sockets
//      ||                            ||  |\--- 2
//      \\============================//  \==== 4 --- 5 --- 7
//                                              \---- 6
//
// Thread safety: pure.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "topology/places.h"

namespace rondo {

/// The slowest link between two ranks, slower ones later.
enum class Crossing : uint8_t {
  kNothing,     // one core, or one GPU
  kNvlink,      // NVLinks, straight or through an NVSwitch
  kCache,       // a shared cache
  kPciSwitch,   // PCIe switches below one host bridge
  kHostBridge,  // a host bridge: the processor's own PCIe
  kNumaNode,    // the memory of one NUMA node, or its several host bridges
  kNumaLink,    // between NUMA nodes of one package
  kSocketLink,  // between packages
};
inline constexpr size_t kNumCrossings = 8;
std::string_view crossing_name(Crossing crossing);  // "socket link"

struct Hop {
  Crossing crossing = Crossing::kNothing;
  /// Between NUMA nodes the firmware's value, else 1; PCIe: number of switches; cache: its level; NVLinks: 36 / their
  /// number.
  uint32_t distance = 1;
  auto operator<=>(const Hop&) const = default;
};

/// Symmetric. O(1), with PCI devices O(depth of their tree squared).
Hop hop_between(const HostTopology& host, const Placement& a, const Placement& b);

/// All pairs of n ranks.
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
  OrderCost& operator+=(const Hop& hop) { return add(hop, 1); }
  OrderCost& operator-=(const Hop& hop) { return add(hop, -1); }
  friend OrderCost operator+(OrderCost cost, const Hop& hop) { return cost += hop; }

 private:
  OrderCost& add(const Hop& hop, int sign) {
    sums[kNumCrossings - 1 - static_cast<size_t>(hop.crossing)] += sign * static_cast<int64_t>(hop.distance);
    return *this;
  }
};

inline constexpr int kMostExact = 12;

/// The ranks in ring order, rank 0 first; the last one is followed by rank 0. O(2^n n^2) up to kMostExact ranks, then
/// about O(n^2) per improvement.
std::vector<int> ring_order(const Hops& hops);

struct TreeOrder {
  int root = 0;
  std::vector<int> parents;                // -1: the root
  std::vector<std::vector<int>> children;  // slower links first, to start the longest transfers first
};
/// O(n^2 log n).
TreeOrder tree_order(const Hops& hops, int root = 0);

OrderCost ring_cost(const Hops& hops, std::span<const int> ring);
OrderCost tree_cost(const Hops& hops, const TreeOrder& tree);
/// Number of hops over each kind of link, by Crossing. A ring of two has two hops, a ring of one has none.
std::array<int, kNumCrossings> ring_crossings(const Hops& hops, std::span<const int> ring);
std::array<int, kNumCrossings> tree_crossings(const Hops& hops, const TreeOrder& tree);

}  // namespace rondo
