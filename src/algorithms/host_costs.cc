#include "algorithms/host_costs.h"

#include <algorithm>
#include <vector>

#include "algorithms/rooted_tree.h"
#include "algorithms/tree.h"

namespace rondo::algorithms {
namespace {

// 1 if a host has more than one rank: work inside the host then takes a step.
int inside(const HostLayout& hosts, int host) { return hosts.num_ranks(host) > 1 ? 1 : 0; }
// The maximum of it over all other hosts; 0 if there are none.
int inside_others(const HostLayout& hosts, int host) {
  int best = 0;
  for (int h = 0; h < hosts.num_hosts(); ++h)
    if (h != host) best = std::max(best, inside(hosts, h));
  return best;
}

// The maximum over all hosts that a chunk may belong to.
template <class Steps>
int64_t longest(const HostLayout& hosts, Steps steps) {
  int64_t most = 0;
  for (int home = 0; home < hosts.num_hosts(); ++home) most = std::max<int64_t>(most, steps(home));
  return most;
}

// Steps until the sum is complete at home, and from there until every rank has it.
int sum_steps(const HostLayout& hosts, int home) { return hosts.one_host() ? 1 : 1 + inside_others(hosts, home); }
int spread_steps(const HostLayout& hosts, int home) {
  return std::max(inside(hosts, home), hosts.one_host() ? 0 : 1 + inside_others(hosts, home));
}

// Messages of one chunk sent by the busiest rank.
template <class Count>
int64_t busiest(const HostLayout& hosts, TwoLevels::Cut cut, Count count) {
  int64_t most = 0;
  for (Rank r = 0; r < hosts.nranks(); ++r) most = std::max<int64_t>(most, count(TwoLevels(r, hosts, cut)));
  return most;
}

int64_t given(const TwoLevels& self) {
  if (self.num_local_peers == 0) return 0;
  int64_t mine = 0;
  for (int home = 0; home < (self.cut == TwoLevels::Cut::kShared ? 1 : self.num_hosts); ++home)
    mine += self.mine(home).size();
  return self.num_chunks() - mine;
}
// This rank's chunks of other hosts.
int64_t mine_of_others(const TwoLevels& self) {
  int64_t mine = 0;
  for (int back = 1; back < self.num_hosts; ++back) mine += self.mine(self.before(back)).size();
  return mine;
}
int64_t spread_chunks(const TwoLevels& self) {
  const int inside = std::min(1, self.num_local_peers);
  return self.mine(self.host).size() * (self.num_hosts - 1 + inside) + mine_of_others(self) * inside;
}

int tree_depth(int nranks, int tree) {
  int depth = 0;
  for (Rank r = 0; r < nranks; ++r) {
    int hops = 0;
    for (Rank up = TreeNode(r, nranks, tree).parent; up >= 0; up = TreeNode(up, nranks, tree).parent) ++hops;
    depth = std::max(depth, hops);
  }
  return depth;
}

struct RootedTreeCost {
  int64_t steps = 0, crossings = 0, halves = 0;  // sent downwards by the busiest rank
};
RootedTreeCost rooted_tree_on_hosts(const HostLayout& hosts) {
  RootedTreeCost cost;
  const int m = hosts.num_hosts();
  std::vector<int> depths[2];
  for (int tree = 0; tree < 2; ++tree)
    for (int h = 0; h < m; ++h) depths[tree].push_back(tree_depth(hosts.num_ranks(h), tree));
  for (int home = 0; home < m; ++home) {
    for (int tree = 0; tree < 2; ++tree) {
      if (const int local_peers = hosts.num_ranks(home) - 1; local_peers > 0)
        cost.steps = std::max<int64_t>(cost.steps, 1 + tree_depth(local_peers, tree));
      for (int v = 0; v < m - 1; ++v) {
        int hops = 1;
        for (int up = TreeNode(v, m - 1, tree).parent; up >= 0; up = TreeNode(up, m - 1, tree).parent) ++hops;
        cost.crossings = std::max<int64_t>(cost.crossings, hops);
        cost.steps = std::max<int64_t>(cost.steps, hops + depths[tree][(home + 1 + v) % m]);
      }
    }
    const Rank root = hosts.rank(home, 0);
    for (Rank r = 0; r < hosts.nranks(); ++r) {
      size_t halves = 0;
      for (int tree = 0; tree < 2; ++tree)
        halves +=
            r == root ? RootedNode::tops(hosts, root, tree).size() : RootedNode(r, hosts, root, tree).children.size();
      cost.halves = std::max<int64_t>(cost.halves, static_cast<int64_t>(halves));
    }
  }
  return cost;
}

}  // namespace

Cost ring_all_reduce_cost(const HostLayout& hosts) {
  const int n = hosts.nranks();
  // A chunk goes round twice, except the two hops after and before its owner.
  auto crosses = [&](int at) { return hosts.same_host(hosts.rank_at(at % n), hosts.rank_at((at + 1) % n)) ? 0 : 1; };
  int fewest = 2;
  for (int at = 0; at < n; ++at) fewest = std::min(fewest, crosses(at) + crosses(at + 1));
  return {2 * (n - 1), 2 * (n - 1), n, hosts.one_host() ? 0 : 2 * hosts.num_hosts() - fewest};
}

Cost ring_half_cost(const HostLayout& hosts) {
  const int n = hosts.nranks(), m = hosts.num_hosts();
  return {n - 1, n - 1, n, hosts.one_host() ? 0 : n > m ? m : m - 1};
}

Cost chain_cost(const HostLayout& hosts) { return {hosts.nranks() - 1, 1, 1, hosts.num_hosts() - 1}; }

Cost tree_cost(const HostLayout& hosts) {
  Cost cost{0, 0, 2, 0};
  const int n = hosts.nranks();
  std::vector<int64_t> halves(static_cast<size_t>(n));
  for (int tree = 0; tree < 2; ++tree) {
    std::vector<Rank> parents;
    for (Rank r = 0; r < n; ++r) {
      const HostTreeNode node(r, hosts, tree);
      parents.push_back(node.parent);
      halves[r] += std::ssize(node.children) + (node.parent >= 0 ? 1 : 0);
    }
    for (Rank r = 0; r < n; ++r) {
      int64_t hops = 0, crossings = 0;
      for (Rank at = r, up; (up = parents[at]) >= 0; at = up) ++hops, crossings += hosts.same_host(at, up) ? 0 : 1;
      cost.steps = std::max(cost.steps, 2 * hops);
      cost.crossings = std::max(cost.crossings, 2 * crossings);
    }
  }
  cost.sent_num = *std::ranges::max_element(halves);
  return cost;
}

Cost tree_broadcast_cost(const HostLayout& hosts) {
  const RootedTreeCost cost = rooted_tree_on_hosts(hosts);
  return {cost.steps, cost.halves, 2, cost.crossings};
}

Cost tree_reduce_cost(const HostLayout& hosts) {
  const RootedTreeCost cost = rooted_tree_on_hosts(hosts);
  return {cost.steps, 2, 2, cost.crossings};
}

Cost hierarchical_all_reduce_cost(const HostLayout& hosts) {
  const TwoLevels any(0, hosts, TwoLevels::Cut::kEven);
  return {longest(hosts, [&](int home) { return sum_steps(hosts, home) + spread_steps(hosts, home); }),
          busiest(hosts, TwoLevels::Cut::kEven,
                  [](const TwoLevels& self) { return given(self) + mine_of_others(self) + spread_chunks(self); }),
          any.num_chunks(), hosts.one_host() ? 0 : 2};
}

Cost hierarchical_reduce_scatter_cost(const HostLayout& hosts) {
  return {
      longest(hosts, [&](int home) { return sum_steps(hosts, home); }),
      busiest(hosts, TwoLevels::Cut::kByRank, [](const TwoLevels& self) { return given(self) + mine_of_others(self); }),
      hosts.nranks(), std::min(1, hosts.num_hosts() - 1)};
}

Cost hierarchical_all_gather_cost(const HostLayout& hosts) {
  return {longest(hosts, [&](int home) { return spread_steps(hosts, home); }),
          busiest(hosts, TwoLevels::Cut::kByRank, spread_chunks), hosts.nranks(), std::min(1, hosts.num_hosts() - 1)};
}

Cost hierarchical_one_shot_cost(const HostLayout& hosts) {
  const TwoLevels any(0, hosts, TwoLevels::Cut::kShared);
  const int across = std::min(1, hosts.num_hosts() - 1);
  return {longest(hosts,
                  [&](int home) {
                    const int sums = across == 0 ? 1 : std::max(inside(hosts, home), 1 + inside_others(hosts, home));
                    return sums + inside(hosts, home);
                  }),
          busiest(hosts, TwoLevels::Cut::kShared,
                  [](const TwoLevels& self) {
                    return given(self) + self.mine(0).size() * (self.num_hosts - 1 + std::min(1, self.num_local_peers));
                  }),
          any.num_chunks(), across};
}

Cost hierarchical_broadcast_cost(const HostLayout& hosts) {
  const TwoLevels any(0, hosts, TwoLevels::Cut::kFew);
  const int across = std::min(1, hosts.num_hosts() - 1);
  return {longest(hosts, [&](int home) { return inside(hosts, home) + across * (1 + inside_others(hosts, home)); }),
          busiest(hosts, TwoLevels::Cut::kFew,
                  [](const TwoLevels& self) {
                    return self.each * std::min(1, self.num_local_peers) + self.mine(0).size() * (self.num_hosts - 1);
                  }),
          any.num_chunks(), across};
}

Cost hierarchical_reduce_cost(const HostLayout& hosts) {
  const int across = std::min(1, hosts.num_hosts() - 1);
  return {longest(hosts,
                  [&](int home) { return (across == 0 ? 1 : 1 + inside_others(hosts, home)) + inside(hosts, home); }),
          1, 1, across};
}

}  // namespace rondo::algorithms
