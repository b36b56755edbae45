#include "topology/order.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace rondo {
namespace {

constexpr uint32_t kNvlinkShare = 36;  // NVML's maximum number of links: a multiple of the devices' link counts

uint32_t node_distance(const HostTopology& host, int a, int b) {
  if (host.node_distances.empty() || a < 0 || b < 0) return 1;
  const auto at = [&](int x, int y) {
    return host.node_distances[static_cast<size_t>(x) * host.nodes.size() + static_cast<size_t>(y)];
  };
  return std::max({at(a, b), at(b, a), 1u});
}

// The hop between two places on NUMA nodes of packages; -1 if unknown.
Hop hop_of_nodes(const HostTopology& host, int package_a, int numa_a, int package_b, int numa_b) {
  if (package_a != package_b) return {Crossing::kSocketLink, node_distance(host, numa_a, numa_b)};
  if (numa_a != numa_b) return {Crossing::kNumaLink, node_distance(host, numa_a, numa_b)};
  return {Crossing::kNumaNode, 1};
}

Hop hop_of_gpus(const HostTopology& host, const HostGpu& a, const HostGpu& b) {
  const GpuMachine& m = host.gpu_machine;
  PciWay way = pci_way(host, a.pci, b.pci);
  if (a.device >= 0 && b.device >= 0) {
    const auto i = static_cast<size_t>(a.device), j = static_cast<size_t>(b.device);
    const GpuPair& pair = m.pair(i, j);
    const int switched = std::min(m.devices[i].switch_links, m.devices[j].switch_links);
    if (const int links = pair.nvlinks > 0 ? pair.nvlinks : switched; links > 0 && pair.access)
      return {Crossing::kNvlink, std::max(1u, kNvlinkShare / static_cast<uint32_t>(links))};
    if (way.path == PciPath::kUnknown) way = {pair.path, pair.path == PciPath::kSwitches ? 2 : 1};
  }
  switch (way.path) {
    case PciPath::kSameBoard: return {Crossing::kNothing, 1};
    case PciPath::kOneSwitch:
    case PciPath::kSwitches: return {Crossing::kPciSwitch, static_cast<uint32_t>(way.num_switches)};
    case PciPath::kHostBridge: return {Crossing::kHostBridge, 1};
    case PciPath::kNumaNode: return {Crossing::kNumaNode, 1};
    case PciPath::kSystem:
    case PciPath::kUnknown: break;
  }
  const Hop hop = hop_of_nodes(host, a.package, a.numa, b.package, b.numa);
  // Two unknown places are not assumed to be near.
  return hop.crossing == Crossing::kNumaNode && way.path != PciPath::kUnknown ? Hop{Crossing::kSocketLink, 1} : hop;
}

// Clusters of ranks by nearness: a cluster consists of smaller ones that are joined by hops of one kind. Single
// linkage.
struct Cluster {
  std::vector<int> ranks;  // ascending
  std::vector<size_t> parts;
  Hop hop;
};
struct Clusters {
  std::vector<Cluster> all;  // the last one has all ranks
  bool is_tree = true;       // every hop equals that of the smallest cluster with both ends
};

Clusters cluster(const Hops& hops) {
  const int n = hops.num_ranks();
  Clusters c;
  std::vector<size_t> of(static_cast<size_t>(n));  // each rank's largest cluster so far
  for (int r = 0; r < n; ++r) {
    of[static_cast<size_t>(r)] = c.all.size();
    c.all.push_back({{r}, {}, {}});
  }
  std::vector<std::pair<int, int>> pairs;
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) pairs.emplace_back(a, b);
  std::sort(pairs.begin(), pairs.end(), [&](const auto& x, const auto& y) {
    return std::tuple(hops.at(x.first, x.second), x) < std::tuple(hops.at(y.first, y.second), y);
  });
  std::vector<size_t> merged(c.all.size() + static_cast<size_t>(n));  // for a cluster: the part that names its group
  for (size_t at = 0; at < pairs.size();) {
    const Hop hop = hops.at(pairs[at].first, pairs[at].second);
    std::iota(merged.begin(), merged.end(), size_t{0});
    const auto find = [&](size_t x) {
      while (merged[x] != x) x = merged[x];
      return x;
    };
    for (; at < pairs.size() && hops.at(pairs[at].first, pairs[at].second) == hop; ++at) {
      const size_t x = of[static_cast<size_t>(pairs[at].first)], y = of[static_cast<size_t>(pairs[at].second)];
      if (x == y) c.is_tree = false;  // nearer paths already join them
      else merged[std::max(find(x), find(y))] = std::min(find(x), find(y));
    }
    const size_t before = c.all.size();
    std::vector<size_t> group_of(before, SIZE_MAX);
    std::vector<int> parts_of(before, 0);
    std::vector<bool> seen(before, false);
    for (const size_t part : of)
      if (!seen[part]) seen[part] = true, ++parts_of[find(part)];
    seen.assign(before, false);
    for (int r = 0; r < n; ++r) {  // in rank order, therefore parts are in the order of their first ranks
      const size_t part = of[static_cast<size_t>(r)], root = find(part);
      if (parts_of[root] < 2) continue;
      if (group_of[root] == SIZE_MAX) {
        group_of[root] = c.all.size();
        c.all.push_back({{}, {}, hop});
      }
      Cluster& group = c.all[group_of[root]];
      if (!seen[part]) group.parts.push_back(part);
      seen[part] = true;
      group.ranks.push_back(r);
    }
    for (size_t g = before; g < c.all.size(); ++g)
      for (const int r : c.all[g].ranks) of[static_cast<size_t>(r)] = g;
  }
  return c;
}

void walk(const Clusters& c, size_t at, std::vector<int>& ring) {
  if (c.all[at].parts.empty()) return ring.push_back(c.all[at].ranks.front());
  for (const size_t part : c.all[at].parts) walk(c, part, ring);
}

// best(visited, last): the cheapest path from `last` through all unvisited ranks back to rank 0. Bit r - 1: rank r.
class ExactRing {
 public:
  explicit ExactRing(const Hops& hops) : hops_(hops), others_(hops.num_ranks() - 1) {
    const size_t sets = size_t{1} << others_;
    best_.resize(sets * static_cast<size_t>(others_));
    for (size_t visited = sets; visited-- > 1;)
      for (int last = 1; last <= others_; ++last)
        if ((visited >> (last - 1) & 1) != 0) at(visited, last) = onwards(visited, last, nullptr);
  }

  std::vector<int> ring() const {
    std::vector<int> order = {0};
    for (size_t visited = 0; static_cast<int>(order.size()) <= others_;) {
      int next = 0;
      onwards(visited, order.back(), &next);
      order.push_back(next);
      visited |= size_t{1} << (next - 1);
    }
    return order;
  }

 private:
  OrderCost& at(size_t visited, int last) {
    return best_[visited * static_cast<size_t>(others_) + static_cast<size_t>(last - 1)];
  }
  OrderCost onwards(size_t visited, int last, int* chosen) const {
    OrderCost least;
    bool any = false;
    for (int next = 1; next <= others_; ++next) {
      if ((visited >> (next - 1) & 1) != 0) continue;
      const size_t then = visited | size_t{1} << (next - 1);
      OrderCost cost = best_[then * static_cast<size_t>(others_) + static_cast<size_t>(next - 1)];
      cost += hops_.at(last, next);
      if (any && cost >= least) continue;
      any = true;
      least = cost;
      if (chosen != nullptr) *chosen = next;
    }
    if (!any) least += hops_.at(last, 0);
    return least;
  }

  const Hops& hops_;
  const int others_;
  std::vector<OrderCost> best_;
};

// Reverses a range wherever that is cheaper. True if it did.
bool two_opt(const Hops& hops, std::vector<int>& ring) {
  const size_t n = ring.size();
  bool any = false;
  for (size_t i = 0; i + 2 < n; ++i)
    for (size_t j = i + 2; j < n; ++j) {
      const int a = ring[i], b = ring[i + 1], c = ring[j], d = ring[(j + 1) % n];
      if (a == d) continue;
      OrderCost change;
      ((change += hops.at(a, c)) += hops.at(b, d)) -= hops.at(a, b);
      change -= hops.at(c, d);
      if (change >= OrderCost()) continue;
      std::reverse(ring.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                   ring.begin() + static_cast<std::ptrdiff_t>(j) + 1);
      any = true;
    }
  return any;
}

// Moves a range of one to three ranks elsewhere, possibly reversed. True if it did.
bool move_stretch(const Hops& hops, std::vector<int>& ring) {
  const size_t n = ring.size();
  bool any = false;
  for (size_t length = 1; length <= 3 && length + 2 < n; ++length)
    for (size_t i = 1; i + length <= n; ++i) {  // rank 0 stays
      const int before = ring[i - 1], first = ring[i], last = ring[i + length - 1], after = ring[(i + length) % n];
      std::vector<int> rest(ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(i));
      rest.insert(rest.end(), ring.begin() + static_cast<std::ptrdiff_t>(i + length), ring.end());
      for (size_t j = 0; j < rest.size(); ++j) {
        const int a = rest[j], b = rest[(j + 1) % rest.size()];
        if (a == before) continue;
        const bool turned =
            OrderCost() + hops.at(a, last) + hops.at(first, b) < OrderCost() + hops.at(a, first) + hops.at(last, b);
        OrderCost change = OrderCost() + hops.at(a, turned ? last : first) + hops.at(turned ? first : last, b);
        change += hops.at(before, after);
        ((change -= hops.at(a, b)) -= hops.at(before, first)) -= hops.at(last, after);
        if (change >= OrderCost()) continue;
        std::vector<int> stretch(ring.begin() + static_cast<std::ptrdiff_t>(i),
                                 ring.begin() + static_cast<std::ptrdiff_t>(i + length));
        if (turned) std::reverse(stretch.begin(), stretch.end());
        rest.insert(rest.begin() + static_cast<std::ptrdiff_t>(j) + 1, stretch.begin(), stretch.end());
        ring = std::move(rest);
        any = true;
        break;
      }
    }
  return any;
}

class TreeBuilder {
 public:
  TreeBuilder(const Hops& hops, const Clusters& clusters, TreeOrder& tree) : hops_(hops), c_(clusters), tree_(tree) {}

  // Joins the parts of a cluster, starting with the root's part, then the ranks within each part.
  void grow(size_t at, int root) {
    const Cluster& cluster = c_.all[at];
    std::vector<size_t> open = cluster.parts;
    std::vector<std::pair<size_t, int>> joined;  // with its root
    const auto holds_root = [&](size_t part) {
      const auto& ranks = c_.all[part].ranks;
      return std::binary_search(ranks.begin(), ranks.end(), root);
    };
    const auto first = std::find_if(open.begin(), open.end(), holds_root);
    if (first == open.end()) return;  // a single rank
    joined.emplace_back(*first, root);
    open.erase(first);
    constexpr size_t kFanOut = 2;
    for (const size_t most : {kFanOut, open.size()})  // a mesh may require a wider fan-out
      for (size_t i = 0; i < joined.size() && !open.empty(); ++i)
        for (size_t k = 0; k < most && join_one(joined[i], cluster.hop, open, joined); ++k) {
        }
    for (const auto& [part, their_root] : joined) grow(part, their_root);
  }

 private:
  // Finds a part connected by a hop of the cluster's kind, preferably from this part's root.
  bool join_one(std::pair<size_t, int> from, const Hop& hop, std::vector<size_t>& open,
                std::vector<std::pair<size_t, int>>& joined) {
    std::vector<int> ends = {from.second};
    for (const int r : c_.all[from.first].ranks)
      if (r != from.second) ends.push_back(r);
    for (const int u : ends)
      for (size_t i = 0; i < open.size(); ++i)
        for (const int v : c_.all[open[i]].ranks) {
          if (hops_.at(u, v) != hop) continue;
          tree_.parents[static_cast<size_t>(v)] = u;
          joined.emplace_back(open[i], v);
          open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
          return true;
        }
    return false;
  }

  const Hops& hops_;
  const Clusters& c_;
  TreeOrder& tree_;
};

}  // namespace

std::string_view crossing_name(Crossing crossing) {
  constexpr std::array<std::string_view, kNumCrossings> kNames = {"same core or GPU", "NVLink",      "shared cache",
                                                                  "PCIe switch",      "host bridge", "NUMA node",
                                                                  "NUMA link",        "socket link"};
  return kNames[static_cast<size_t>(crossing)];
}

Hop hop_between(const HostTopology& host, const Placement& a, const Placement& b) {
  if (a.gpu >= 0 && b.gpu >= 0) {
    if (a.gpu == b.gpu) return {Crossing::kNothing, 1};
    return hop_of_gpus(host, host.gpus[static_cast<size_t>(a.gpu)], host.gpus[static_cast<size_t>(b.gpu)]);
  }
  if (a.core == b.core) return {Crossing::kNothing, 1};
  const Hop hop = hop_of_nodes(host, a.package, a.numa, b.package, b.numa);
  if (hop.crossing != Crossing::kNumaNode || a.core < 0 || b.core < 0) return hop;
  const auto &mine = host.cores[static_cast<size_t>(a.core)].caches,
             &theirs = host.cores[static_cast<size_t>(b.core)].caches;
  for (const int cache : mine)
    if (std::find(theirs.begin(), theirs.end(), cache) != theirs.end())
      return {Crossing::kCache, static_cast<uint32_t>(host.caches[static_cast<size_t>(cache)].level)};
  return hop;
}

Hops::Hops(const HostTopology& host, std::span<const Placement> places) : Hops(static_cast<int>(places.size())) {
  for (int a = 0; a < n_; ++a)
    for (int b = a + 1; b < n_; ++b)
      set(a, b, hop_between(host, places[static_cast<size_t>(a)], places[static_cast<size_t>(b)]));
}

std::vector<int> ring_order(const Hops& hops) {
  const int n = hops.num_ranks();
  if (n < 2) return std::vector<int>(static_cast<size_t>(n), 0);
  if (n <= kMostExact) return ExactRing(hops).ring();
  const Clusters clusters = cluster(hops);
  std::vector<int> ring;
  walk(clusters, clusters.all.size() - 1, ring);
  constexpr int kMostRounds = 100;  // each round makes it cheaper: few are needed
  for (int round = 0; !clusters.is_tree && round < kMostRounds; ++round) {
    const bool turned = two_opt(hops, ring), moved = move_stretch(hops, ring);
    if (!turned && !moved) break;
  }
  return ring;
}

TreeOrder tree_order(const Hops& hops, int root) {
  const int n = hops.num_ranks();
  TreeOrder tree{root, std::vector<int>(static_cast<size_t>(n), -1),
                 std::vector<std::vector<int>>(static_cast<size_t>(n))};
  if (n == 0) return tree;
  const Clusters clusters = cluster(hops);
  TreeBuilder(hops, clusters, tree).grow(clusters.all.size() - 1, root);
  for (int r = 0; r < n; ++r)
    if (const int parent = tree.parents[static_cast<size_t>(r)]; parent >= 0)
      tree.children[static_cast<size_t>(parent)].push_back(r);
  for (int r = 0; r < n; ++r)
    std::stable_sort(tree.children[static_cast<size_t>(r)].begin(), tree.children[static_cast<size_t>(r)].end(),
                     [&](int a, int b) { return hops.at(r, a) > hops.at(r, b); });
  return tree;
}

namespace {

template <class Visit>
void each_hop(const Hops& hops, std::span<const int> ring, Visit&& visit) {
  for (size_t i = 0; i < ring.size() && ring.size() > 1; ++i) visit(hops.at(ring[i], ring[(i + 1) % ring.size()]));
}
template <class Visit>
void each_hop(const Hops& hops, const TreeOrder& tree, Visit&& visit) {
  for (size_t r = 0; r < tree.parents.size(); ++r)
    if (tree.parents[r] >= 0) visit(hops.at(static_cast<int>(r), tree.parents[r]));
}
template <class Order>
OrderCost cost_of(const Hops& hops, const Order& order) {
  OrderCost cost;
  each_hop(hops, order, [&](const Hop& hop) { cost += hop; });
  return cost;
}
template <class Order>
std::array<int, kNumCrossings> crossings_of(const Hops& hops, const Order& order) {
  std::array<int, kNumCrossings> counts{};
  each_hop(hops, order, [&](const Hop& hop) { ++counts[static_cast<size_t>(hop.crossing)]; });
  return counts;
}

}  // namespace

OrderCost ring_cost(const Hops& hops, std::span<const int> ring) { return cost_of(hops, ring); }
OrderCost tree_cost(const Hops& hops, const TreeOrder& tree) { return cost_of(hops, tree); }
std::array<int, kNumCrossings> ring_crossings(const Hops& hops, std::span<const int> ring) {
  return crossings_of(hops, ring);
}
std::array<int, kNumCrossings> tree_crossings(const Hops& hops, const TreeOrder& tree) {
  return crossings_of(hops, tree);
}

}  // namespace rondo
