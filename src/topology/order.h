// The order of ranks in rings and trees, so that slow links are crossed as seldom as can be. Pure functions of the hops
// between places; all ranks that start from equal places get equal orders.
//
// Cost. A hop crosses one kind of link, its slowest (Crossing), at a distance. Two orders are compared by the sum of
// distances over the slowest kind of link, then over the next slower one, and so on: a single hop less between sockets
// outweighs anything within them. Where all distances are equal, that is the number of crossings.
//
// Ring: a closed way through all ranks, from rank 0. Up to kMostExact ranks the cheapest of all (dynamic programming
// over subsets, Held and Karp 1962), of equal ones the first in the order of their ranks. Beyond, the ranks are
// clustered by nearness and walked through cluster by cluster, then improved by 2-opt and by moving short stretches.
// Where nearness is a tree, as in caches, NUMA nodes, packages and PCIe switches, the walk is already the cheapest: k
// groups at some level are joined by k hops (2 groups by 2: there and back), and less cannot be.
//
// Tree: always the cheapest, a minimum spanning tree: k groups are joined by k - 1 hops. Of these it is a shallow one:
// within each cluster the next smaller clusters form a binary tree, and the cluster's root leads it.
//
//        ring over 2 sockets of 4        tree
//      0 - 1 - 2 - 3 === 4 - 5 - 6 - 7   0 --- 1 --- 3      === crosses the sockets' link
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

/// The slowest that lies between two ranks, slower ones later.
enum class Crossing : uint8_t {
  kNothing,     // one core, or one GPU
  kNvlink,      // NVLinks, straight or through an NVSwitch
  kCache,       // a cache that both share
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
  /// Between NUMA nodes what firmware states, else 1; PCIe: how many switches; a cache: its level; NVLinks: 36 / how
  /// many.
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

/// Sums of distances, the slowest kind of link first: compares as the comment above says.
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

/// The ranks in the order of the ring, rank 0 first; the last is followed by rank 0.
/// O(2^n n^2) up to kMostExact ranks, then about O(n^2) for each improvement.
std::vector<int> ring_order(const Hops& hops);

struct TreeOrder {
  int root = 0;
  std::vector<int> parents;                // -1: the root
  std::vector<std::vector<int>> children;  // slower links first, so that what takes longest starts first
};
/// O(n^2 log n).
TreeOrder tree_order(const Hops& hops, int root = 0);

OrderCost ring_cost(const Hops& hops, std::span<const int> ring);
OrderCost tree_cost(const Hops& hops, const TreeOrder& tree);
/// How many hops cross each kind of link, by Crossing. A ring of two has two hops, of one none.
std::array<int, kNumCrossings> ring_crossings(const Hops& hops, std::span<const int> ring);
std::array<int, kNumCrossings> tree_crossings(const Hops& hops, const TreeOrder& tree);

}  // namespace rondo
