#include "topology/order.h"

#include <algorithm>
#include <numeric>

namespace rondo {
namespace {

uint32_t node_distance(const HostTopology& host, int a, int b) {
  if (host.node_distances.empty() || a < 0 || b < 0) return 1;
  const auto at = [&](int x, int y) {
    return host.node_distances[static_cast<size_t>(x) * host.nodes.size() + static_cast<size_t>(y)];
  };
  return std::max({at(a, b), at(b, a), 1u});
}

Hop hop_between(const HostTopology& host, const Placement& a, const Placement& b) {
  if (a.core == b.core) return {Crossing::kNothing, 1};
  if (a.package != b.package) return {Crossing::kSocketLink, node_distance(host, a.numa, b.numa)};
  if (a.numa != b.numa) return {Crossing::kNumaLink, node_distance(host, a.numa, b.numa)};
  if (a.core < 0 || b.core < 0) return {Crossing::kNumaNode, 1};
  const auto &mine = host.cores[a.core].caches, &theirs = host.cores[b.core].caches;
  for (const int cache : mine)
    if (std::find(theirs.begin(), theirs.end(), cache) != theirs.end())
      return {Crossing::kCache, static_cast<uint32_t>(host.caches[cache].level)};
  return {Crossing::kNumaNode, 1};
}

// The cheapest ring. best[place(visited, last)]: the cheapest path from `last` through all unvisited ranks back to
// rank 0. Bit r - 1: rank r.
std::vector<int> exact_ring(const Hops& hops) {
  const auto others = static_cast<size_t>(hops.num_ranks()) - 1;
  const size_t sets = size_t{1} << others;
  std::vector<OrderCost> best(sets * others);
  const auto place = [&](size_t visited, size_t last) { return visited * others + last - 1; };
  struct Path {
    OrderCost cost;
    size_t next = 0;  // its first rank; 0: none is left
  };
  const auto onwards = [&](size_t visited, size_t last) {
    Path least;
    for (size_t r = 1; r <= others; ++r) {
      if ((visited >> (r - 1) & 1) != 0) continue;
      OrderCost cost = best[place(visited | size_t{1} << (r - 1), r)];
      cost += hops.at(static_cast<int>(last), static_cast<int>(r));
      if (least.next == 0 || cost < least.cost) least = {cost, r};
    }
    if (least.next == 0) least.cost += hops.at(static_cast<int>(last), 0);
    return least;
  };
  for (size_t visited = sets; visited-- > 1;)
    for (size_t last = 1; last <= others; ++last)
      if ((visited >> (last - 1) & 1) != 0) best[place(visited, last)] = onwards(visited, last).cost;
  std::vector<int> ring = {0};
  for (size_t visited = 0; ring.size() <= others;) {
    const size_t next = onwards(visited, static_cast<size_t>(ring.back())).next;
    visited |= size_t{1} << (next - 1);
    ring.push_back(static_cast<int>(next));
  }
  return ring;
}

// The slowest hop of a minimum spanning tree (Prim's algorithm).
Hop slowest_needed(const Hops& hops, const std::vector<int>& ranks) {
  constexpr Hop kFar = {Crossing::kSocketLink, UINT32_MAX};
  std::vector<int> open(ranks.begin() + 1, ranks.end());
  std::vector<Hop> nearest(static_cast<size_t>(hops.num_ranks()), kFar);
  Hop slowest;
  for (int last = ranks.front(); !open.empty();) {
    for (const int r : open) nearest[r] = std::min(nearest[r], hops.at(last, r));
    const auto next = std::min_element(open.begin(), open.end(), [&](int x, int y) { return nearest[x] < nearest[y]; });
    last = *next;
    slowest = std::max(slowest, nearest[last]);
    open.erase(next);
  }
  return slowest;
}

// Divides ranks into the largest clusters that nearer hops connect, in the order of their first ranks.
std::vector<std::vector<int>> clusters_of(const Hops& hops, std::vector<int> open) {
  const Hop slowest = slowest_needed(hops, open);
  std::vector<std::vector<int>> clusters;
  while (!open.empty()) {
    std::vector<int> cluster = {open.front()};
    open.erase(open.begin());
    for (size_t i = 0; i < cluster.size(); ++i) {
      const auto near =
          std::stable_partition(open.begin(), open.end(), [&](int r) { return hops.at(cluster[i], r) >= slowest; });
      cluster.insert(cluster.end(), near, open.end());
      open.erase(near, open.end());
    }
    std::sort(cluster.begin(), cluster.end());
    clusters.push_back(std::move(cluster));
  }
  return clusters;
}

// The cheapest ring through clusters, if each hop between two of them joins their nearest ranks.
std::vector<int> cluster_order(const Hops& hops, const std::vector<std::vector<int>>& clusters) {
  const auto n = static_cast<int>(clusters.size());
  std::vector<int> order(clusters.size());
  std::iota(order.begin(), order.end(), 0);
  if (n > kMostExact) return order;
  Hops between(n);
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      Hop nearest = {Crossing::kSocketLink, UINT32_MAX};
      for (const int x : clusters[a])
        for (const int y : clusters[b]) nearest = std::min(nearest, hops.at(x, y));
      between.set(a, b, nearest);
    }
  return exact_ring(between);
}

void walk(const Hops& hops, const std::vector<int>& ranks, std::vector<int>& ring) {
  if (ranks.size() == 1) return ring.push_back(ranks.front());
  const auto clusters = clusters_of(hops, ranks);
  for (const int c : cluster_order(hops, clusters)) walk(hops, clusters[c], ring);
}

}  // namespace

Hops::Hops(const HostTopology& host, std::span<const Placement> places) : Hops(static_cast<int>(places.size())) {
  for (int a = 0; a < n_; ++a)
    for (int b = a + 1; b < n_; ++b) set(a, b, hop_between(host, places[a], places[b]));
}

std::vector<int> ring_order(const Hops& hops) {
  const int n = hops.num_ranks();
  if (n < 2) return std::vector<int>(static_cast<size_t>(n), 0);
  if (n <= kMostExact) return exact_ring(hops);
  std::vector<int> ranks(static_cast<size_t>(n)), ring;
  std::iota(ranks.begin(), ranks.end(), 0);
  walk(hops, ranks, ring);
  return ring;
}

}  // namespace rondo
