#include "algorithms/registry.h"

#include <algorithm>

#include "algorithms/direct.h"
#include "algorithms/pull.h"
#include "algorithms/one_shot.h"
#include "algorithms/recursive_doubling.h"
#include "algorithms/ring.h"
#include "algorithms/tree.h"
#include "algorithms/two_shot.h"

namespace rondo {
namespace {

using namespace algorithms;  // NOLINT(google-build-using-namespace): the table reads as names

// The text of a collective that has no root.
template <void (*kText)(Recorder&, Rank, int)>
void rootless(Recorder& p, Rank rank, int nranks, Rank /*root*/) {
  kText(p, rank, nranks);
}

Cost ring_all_reduce_cost(int n) { return {2 * (n - 1), 2 * (n - 1), n}; }
Cost ring_half_cost(int n) { return {n - 1, n - 1, n}; }

// The data of one rank alone needs no message.
Cost unless_alone(int n, Cost cost) { return n == 1 ? Cost{0, 0, 1} : cost; }
Cost one_shot_cost(int n) { return unless_alone(n, {1, 1, 1}); }
Cost two_shot_cost(int n) { return unless_alone(n, {2, n, n}); }
Cost all_pairs_reduce_scatter_cost(int n) { return unless_alone(n, {1, n - 1, n}); }
Cost all_pairs_all_gather_cost(int n) { return unless_alone(n, {1, 1, n}); }
Cost pull_all_reduce_cost(int n) { return unless_alone(n, {3, 0, 1}); }
Cost direct_cost(int n) { return unless_alone(n, {2, 0, 1}); }  // credits only: data goes from buffer to buffer

Cost recursive_doubling_cost(int n) {
  const int rounds = RecursiveDoubling::rounds(n), pairs = RecursiveDoubling::folded(n);
  if (pairs == 0) return {rounds, rounds, 1};
  return {rounds + (2 * pairs > 1 << rounds ? 2 : 1), rounds + 1, 1};
}

Cost tree_cost(int n) {  // O(N log N): the deepest path and the busiest rank of both trees
  int64_t depth = 0, busiest = 0;
  for (Rank r = 0; r < n; ++r) {
    int64_t halves = 0;
    for (int tree = 0; tree < 2; ++tree) {
      const TreeNode node(r, n, tree);
      halves += node.num_children + (node.parent >= 0 ? 1 : 0);
      int64_t hops = 0;
      for (Rank up = node.parent; up >= 0; up = TreeNode(up, n, tree).parent) ++hops;
      depth = std::max(depth, hops);
    }
    busiest = std::max(busiest, halves);
  }
  return {2 * depth, busiest, 2};
}

constexpr Algorithm kAlgorithms[] = {
    {"ring", Collective::kAllReduce, "2(N-1) steps to the neighbour, least bytes", rootless<ring_all_reduce<Recorder>>,
     ring_all_reduce_cost, false, false},
    {"ring", Collective::kReduceScatter, "N-1 steps to the neighbour, least bytes", rootless<ring_reduce_scatter<Recorder>>,
     ring_half_cost, false, false},
    {"ring", Collective::kAllGather, "N-1 steps to the neighbour, least bytes", rootless<ring_all_gather<Recorder>>,
     ring_half_cost, false, true},
    {"one_shot", Collective::kAllReduce, "1 step: everybody reads everything", rootless<one_shot_all_reduce<Recorder>>,
     one_shot_cost, false, true},
    {"one_shot", Collective::kReduceScatter, "1 step: each chunk straight to its owner",
     rootless<all_pairs_reduce_scatter<Recorder>>, all_pairs_reduce_scatter_cost, false, true},
    {"one_shot", Collective::kAllGather, "1 step: written once, read by all", rootless<all_pairs_all_gather<Recorder>>,
     all_pairs_all_gather_cost, false, true},
    {"two_shot", Collective::kAllReduce, "2 steps: chunks to their owners, sums to all", rootless<two_shot_all_reduce<Recorder>>,
     two_shot_cost, false, true},
    {"two_shot", Collective::kReduceScatter, "1 step: the first shot alone", rootless<all_pairs_reduce_scatter<Recorder>>,
     all_pairs_reduce_scatter_cost, false, true},
    {"two_shot", Collective::kAllGather, "1 step: the second shot alone", rootless<all_pairs_all_gather<Recorder>>,
     all_pairs_all_gather_cost, false, true},
    {"tree", Collective::kAllReduce, "2 log N steps up and down two binary trees", rootless<tree_all_reduce<Recorder>>,
     tree_cost, false, false},
    {"recursive_doubling", Collective::kAllReduce, "log N steps of the whole buffer",
     rootless<recursive_doubling_all_reduce<Recorder>>, recursive_doubling_cost, false, false},
    {"direct", Collective::kAllReduce, "from buffer to buffer, between two meetings", rootless<direct_all_reduce<Recorder>>,
     direct_cost, true, true},
    {"direct", Collective::kReduceScatter, "pulled from buffer to buffer, between two meetings",
     rootless<direct_reduce_scatter<Recorder>>, direct_cost, true, true},
    {"direct", Collective::kAllGather, "pushed from buffer to buffer, between two meetings",
     rootless<direct_all_gather<Recorder>>, direct_cost, true, true},
    {"pull", Collective::kAllReduce, "sums, then the others' sums, read from buffer to buffer",
     rootless<pull_all_reduce<Recorder>>, pull_all_reduce_cost, true, true, true},
    {"pull", Collective::kReduceScatter, "read from buffer to buffer, between two meetings",
     rootless<direct_reduce_scatter<Recorder>>, direct_cost, true, true, true},
    {"pull", Collective::kAllGather, "read from buffer to buffer, between two meetings", rootless<pull_all_gather<Recorder>>,
     direct_cost, true, true, true},
};

}  // namespace

std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  for (const Algorithm& a : kAlgorithms)
    if (a.collective == collective && a.name == name) return &a;
  return nullptr;
}

RankSchedule record_rank(const Algorithm& algorithm, Rank rank, int nranks, Rank root) {
  RONDO_CHECK(nranks >= 1 && nranks <= 65535 && rank >= 0 && rank < nranks && root >= 0 && root < nranks);
  Recorder recorder(rank, nranks);
  algorithm.record(recorder, rank, nranks, root);
  return recorder.take();
}

Schedule record_all(const Algorithm& algorithm, int nranks, Rank root) {
  Schedule s;
  s.collective = algorithm.collective;
  s.nranks = nranks;
  s.root = root;
  s.ranks.reserve(static_cast<size_t>(nranks));
  for (Rank r = 0; r < nranks; ++r) s.ranks.push_back(record_rank(algorithm, r, nranks, root));
  return s;
}

}  // namespace rondo
