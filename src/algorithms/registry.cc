#include "algorithms/registry.h"

#include <algorithm>
#include <bit>

#include "algorithms/all_to_all.h"
#include "algorithms/barrier.h"
#include "algorithms/binomial.h"
#include "algorithms/chain.h"
#include "algorithms/circulant.h"
#include "algorithms/direct.h"
#include "algorithms/halving_doubling.h"
#include "algorithms/linear.h"
#include "algorithms/one_shot.h"
#include "algorithms/pull.h"
#include "algorithms/recursive_doubling.h"
#include "algorithms/ring.h"
#include "algorithms/rooted_tree.h"
#include "algorithms/send_recv.h"
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
Cost chain_cost(int n) { return unless_alone(n, {n - 1, 1, 1}); }
Cost one_hop_cost(int n) { return unless_alone(n, {1, 1, 1}); }
Cost two_shot_reduce_cost(int n) { return unless_alone(n, {2, n, n}); }
Cost gather_cost(int n) { return unless_alone(n, {1, 1, n}); }
Cost scatter_cost(int n) { return unless_alone(n, {1, n - 1, n}); }
Cost pairwise_cost(int n) { return {n - 1, n - 1, n}; }
Cost pull_all_reduce_cost(int n) { return unless_alone(n, {3, 0, 1}); }
Cost direct_cost(int n) { return unless_alone(n, {2, 0, 1}); }  // credits only: data goes from buffer to buffer

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

Cost rooted_tree_cost(int n) {
  if (n == 1) return {0, 0, 1};
  const Cost both = tree_cost(n - 1);  // over the others
  return {1 + both.steps / 2, 2, 2};
}

int64_t ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }
Cost circulant_cost(int n) { return {ceil_log2(n), n - 1, n}; }
Cost circulant_all_reduce_cost(int n) { return {2 * ceil_log2(n), 2 * (n - 1), n}; }
Cost barrier_cost(int n) { return unless_alone(n, {1, 0, 1}); }
Cost dissemination_cost(int n) { return {ceil_log2(n), 0, 1}; }
int64_t floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
Cost binomial_scatter_cost(int n) { return {floor_log2(n), n - 1, n}; }
Cost binomial_gather_cost(int n) {  // the largest of the blocks that are handed on
  int64_t largest = 0;
  for (int bit = 1; bit < n; bit *= 2) largest = std::max<int64_t>(largest, std::min(bit, n - bit));
  return {floor_log2(n), largest, n};
}

// Steps of the rounds among seats, and of folds into them and results out of them where seats are shared.
int64_t seat_steps(int n) {
  const int rounds = RecursiveDoubling::rounds(n), pairs = RecursiveDoubling::folded(n);
  return rounds + (pairs == 0 ? 0 : 2 * pairs > 1 << rounds ? 2 : 1);
}
Cost recursive_doubling_cost(int n) {
  const int rounds = RecursiveDoubling::rounds(n), pairs = RecursiveDoubling::folded(n);
  return {seat_steps(n), rounds + (pairs == 0 ? 0 : 1), 1};
}

Cost halving_doubling_cost(int n) {
  const int rounds = RecursiveDoubling::rounds(n), seats = 1 << rounds;
  return n == seats ? Cost{2 * rounds, 2 * (n - 1), n} : Cost{2 * rounds + 2, 3 * seats - 2, seats};
}
Cost halving_cost(int n) { return {seat_steps(n), RecursiveDoubling::folded(n) == 0 ? n - 1 : n, n}; }
Cost doubling_cost(int n) {
  const int pairs = RecursiveDoubling::folded(n);
  int64_t sent = pairs == 0 ? 0 : n - 1;
  for (int block = 1; 2 * block <= n; block *= 2) sent += block + std::min(block, pairs);
  return {seat_steps(n), sent, n};
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
    {"halving_doubling", Collective::kAllReduce, "2 log N steps: halves of halves, then back; least bytes for 2^k ranks",
     rootless<halving_doubling_all_reduce<Recorder>>, halving_doubling_cost, false, false},
    {"halving_doubling", Collective::kReduceScatter, "log N steps: halves of halves",
     rootless<halving_reduce_scatter<Recorder>>, halving_cost, false, false},
    {"halving_doubling", Collective::kAllGather, "log N steps, each doubles what is there",
     rootless<doubling_all_gather<Recorder>>, doubling_cost, false, true},
    {"circulant", Collective::kAllReduce, "2 log N steps, least bytes for any N", rootless<circulant_all_reduce<Recorder>>,
     circulant_all_reduce_cost, false, false},
    {"circulant", Collective::kReduceScatter, "log N steps, least bytes for any N",
     rootless<circulant_reduce_scatter<Recorder>>, circulant_cost, false, false},
    {"circulant", Collective::kAllGather, "log N steps, least bytes for any N", rootless<circulant_all_gather<Recorder>>,
     circulant_cost, false, true},
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
    {"ring", Collective::kBroadcast, "N-1 steps along the ring", ring_broadcast<Recorder>, chain_cost, false, true},
    {"tree", Collective::kBroadcast, "log N steps down two binary trees", tree_broadcast<Recorder>, rooted_tree_cost, false,
     true},
    {"one_shot", Collective::kBroadcast, "1 step: written once, read by all", one_shot_broadcast<Recorder>, one_hop_cost,
     false, true},
    {"direct", Collective::kBroadcast, "pushed from buffer to buffer, between two meetings", direct_broadcast<Recorder>,
     direct_cost, true, true},
    {"pull", Collective::kBroadcast, "read from buffer to buffer, between two meetings", pull_broadcast<Recorder>,
     direct_cost, true, true, true},
    {"ring", Collective::kReduce, "N-1 steps along the ring", ring_reduce<Recorder>, chain_cost, false, false},
    {"tree", Collective::kReduce, "log N steps up two binary trees", tree_reduce<Recorder>, rooted_tree_cost, false, false},
    {"one_shot", Collective::kReduce, "1 step: the root adds everything", one_shot_reduce<Recorder>, one_hop_cost, false,
     true},
    {"two_shot", Collective::kReduce, "2 steps: chunks to their owners, sums to the root", two_shot_reduce<Recorder>,
     two_shot_reduce_cost, false, true},
    {"pull", Collective::kReduce, "the root reads and adds everything, between two meetings", pull_reduce<Recorder>,
     direct_cost, true, true, true},
    {"pairwise", Collective::kAllToAll, "N-1 rounds, one partner in each", rootless<pairwise_all_to_all<Recorder>>,
     pairwise_cost, false, true},
    {"one_shot", Collective::kAllToAll, "1 step: everything at once", rootless<one_shot_all_to_all<Recorder>>,
     all_pairs_reduce_scatter_cost, false, true},
    {"pull", Collective::kAllToAll, "read from buffer to buffer, between two meetings",
     rootless<pull_all_to_all<Recorder>>, direct_cost, true, true, true},
    {"linear", Collective::kGather, "1 step: each chunk straight to the root", linear_gather<Recorder>, gather_cost, false,
     true},
    {"binomial", Collective::kGather, "log N steps: whole subtrees at a time", binomial_gather<Recorder>,
     binomial_gather_cost, false, true},
    {"pull", Collective::kGather, "read by the root from buffer to buffer, between two meetings", pull_gather<Recorder>,
     direct_cost, true, true, true},
    {"linear", Collective::kScatter, "1 step: each chunk straight from the root", linear_scatter<Recorder>, scatter_cost,
     false, true},
    {"binomial", Collective::kScatter, "log N steps: whole subtrees at a time", binomial_scatter<Recorder>,
     binomial_scatter_cost, false, true},
    {"pull", Collective::kScatter, "read from the root's buffer, between two meetings", pull_scatter<Recorder>, direct_cost,
     true, true, true},
    {"one_shot", Collective::kBarrier, "1 step: everybody tells everybody", rootless<one_shot_barrier<Recorder>>,
     barrier_cost, false, true},
    {"dissemination", Collective::kBarrier, "log N rounds of telling others", rootless<dissemination_barrier<Recorder>>,
     dissemination_cost, false, true},
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
  RONDO_CHECK(recorder.error().empty());
  return recorder.take();
}

RankSchedule record_point_to_point(Collective send_or_recv, Rank rank, int nranks, Rank peer) {
  RONDO_CHECK(is_point_to_point(send_or_recv));
  Recorder recorder(rank, nranks);
  if (send_or_recv == Collective::kSend) send_to(recorder, peer);
  else recv_from(recorder, peer);
  RONDO_CHECK(recorder.error().empty());
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
