#include "algorithms/registry.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <type_traits>
#include <utility>

#include "algorithms/all_to_all.h"
#include "algorithms/barrier.h"
#include "algorithms/binomial.h"
#include "algorithms/chain.h"
#include "algorithms/circulant.h"
#include "algorithms/direct.h"
#include "algorithms/halving_doubling.h"
#include "algorithms/hierarchical.h"
#include "algorithms/hierarchical_rooted.h"
#include "algorithms/host_costs.h"
#include "algorithms/linear.h"
#include "algorithms/one_shot.h"
#include "algorithms/pull.h"
#include "algorithms/recursive_doubling.h"
#include "algorithms/ring.h"
#include "algorithms/rooted_tree.h"
#include "algorithms/tree.h"
#include "algorithms/two_shot.h"
#include "base/error.h"

namespace rondo {
namespace {

using namespace algorithms;  // NOLINT(google-build-using-namespace): the table reads as names

// Calls a definition, with a root if it takes one. Where: the number of ranks, or their hosts.
template <auto kText, class Where>
void record(Recorder& p, Rank rank, Where where, Rank root) {
  if constexpr (std::is_invocable_v<decltype(kText), Recorder&, Rank, Where, Rank>) kText(p, rank, where, root);
  else kText(p, rank, where);
}

// A row of a definition and its cost. If the cost takes a HostLayout, so does the definition.
template <auto kText, auto kCost>
constexpr Algorithm row(std::string_view name, Collective collective, std::string_view summary) {
  Algorithm a{.name = name,
              .collective = collective,
              .summary = summary,
              .record = record<kText, int>,
              .cost = [](int nranks) -> Cost { return kCost(nranks); }};
  if constexpr (std::is_invocable_v<decltype(kCost), const HostLayout&>) {
    a.record_on_hosts = record<kText, const HostLayout&>;
    a.cost_on_hosts = kCost;
  }
  return a;
}
constexpr Algorithm in_rank_order(Algorithm a) { return a.rank_order = true, a; }
constexpr Algorithm buffer_to_buffer(Algorithm a) { return a.direct = true, in_rank_order(a); }
constexpr Algorithm pulled(Algorithm a) { return a.pulls_only = true, buffer_to_buffer(a); }
constexpr Algorithm for_several_hosts(Algorithm a) { return a.for_hosts = true, a; }

constexpr Algorithm kAlgorithms[] = {
    row<ring_all_reduce<Recorder>, ring_all_reduce_cost>("ring", Collective::kAllReduce,
                                                         "2(N-1) steps to the neighbour, least bytes"),
    row<ring_reduce_scatter<Recorder>, ring_half_cost>("ring", Collective::kReduceScatter,
                                                       "N-1 steps to the neighbour, least bytes"),
    in_rank_order(row<ring_all_gather<Recorder>, ring_half_cost>("ring", Collective::kAllGather,
                                                                 "N-1 steps to the neighbour, least bytes")),
    in_rank_order(row<one_shot_all_reduce<Recorder>, one_shot_cost>("one_shot", Collective::kAllReduce,
                                                                    "1 step: every rank reads all buffers")),
    in_rank_order(row<all_pairs_reduce_scatter<Recorder>, send_others_cost>(
        "one_shot", Collective::kReduceScatter, "1 step: each chunk straight to its owner")),
    in_rank_order(row<all_pairs_all_gather<Recorder>, send_own_cost>("one_shot", Collective::kAllGather,
                                                                     "1 step: written once, read by all")),
    in_rank_order(row<two_shot_all_reduce<Recorder>, two_shot_cost>("two_shot", Collective::kAllReduce,
                                                                    "2 steps: chunks to their owners, sums to all")),
    in_rank_order(row<all_pairs_reduce_scatter<Recorder>, send_others_cost>("two_shot", Collective::kReduceScatter,
                                                                            "1 step: the first shot only")),
    in_rank_order(row<all_pairs_all_gather<Recorder>, send_own_cost>("two_shot", Collective::kAllGather,
                                                                     "1 step: the second shot only")),
    row<tree_all_reduce<Recorder>, tree_cost>("tree", Collective::kAllReduce,
                                              "2 log N steps up and down two binary trees"),
    row<recursive_doubling_all_reduce<Recorder>, recursive_doubling_cost>("recursive_doubling", Collective::kAllReduce,
                                                                          "log N steps of the whole buffer"),
    row<halving_doubling_all_reduce<Recorder>, halving_doubling_cost>(
        "halving_doubling", Collective::kAllReduce,
        "2 log N steps: halves of halves, then back; least bytes for 2^k ranks"),
    row<halving_reduce_scatter<Recorder>, halving_cost>("halving_doubling", Collective::kReduceScatter,
                                                        "log N steps: halves of halves"),
    in_rank_order(row<doubling_all_gather<Recorder>, doubling_cost>("halving_doubling", Collective::kAllGather,
                                                                    "log N steps, each doubles the data")),
    row<circulant_all_reduce<Recorder>, circulant_all_reduce_cost>("circulant", Collective::kAllReduce,
                                                                   "2 log N steps, least bytes for any N"),
    row<circulant_reduce_scatter<Recorder>, circulant_cost>("circulant", Collective::kReduceScatter,
                                                            "log N steps, least bytes for any N"),
    in_rank_order(row<circulant_all_gather<Recorder>, circulant_cost>("circulant", Collective::kAllGather,
                                                                      "log N steps, least bytes for any N")),
    buffer_to_buffer(row<direct_all_reduce<Recorder>, direct_cost>(
        "direct", Collective::kAllReduce, "from buffer to buffer, between two credit exchanges")),
    buffer_to_buffer(row<direct_reduce_scatter<Recorder>, direct_cost>(
        "direct", Collective::kReduceScatter, "pulled from buffer to buffer, between two credit exchanges")),
    buffer_to_buffer(row<direct_all_gather<Recorder>, direct_cost>(
        "direct", Collective::kAllGather, "pushed from buffer to buffer, between two credit exchanges")),
    pulled(row<pull_all_reduce<Recorder>, pull_all_reduce_cost>(
        "pull", Collective::kAllReduce, "sums, then the others' sums, read from buffer to buffer")),
    pulled(row<direct_reduce_scatter<Recorder>, direct_cost>(
        "pull", Collective::kReduceScatter, "read from buffer to buffer, between two credit exchanges")),
    pulled(row<pull_all_gather<Recorder>, direct_cost>("pull", Collective::kAllGather,
                                                       "read from buffer to buffer, between two credit exchanges")),
    in_rank_order(
        row<ring_broadcast<Recorder>, chain_cost>("ring", Collective::kBroadcast, "N-1 steps along the ring")),
    in_rank_order(row<tree_broadcast<Recorder>, tree_broadcast_cost>("tree", Collective::kBroadcast,
                                                                     "log N steps down two binary trees")),
    in_rank_order(row<one_shot_broadcast<Recorder>, one_shot_cost>("one_shot", Collective::kBroadcast,
                                                                   "1 step: written once, read by all")),
    buffer_to_buffer(row<direct_broadcast<Recorder>, direct_cost>(
        "direct", Collective::kBroadcast, "pushed from buffer to buffer, between two credit exchanges")),
    pulled(row<pull_broadcast<Recorder>, direct_cost>("pull", Collective::kBroadcast,
                                                      "read from buffer to buffer, between two credit exchanges")),
    row<ring_reduce<Recorder>, chain_cost>("ring", Collective::kReduce, "N-1 steps along the ring"),
    row<tree_reduce<Recorder>, tree_reduce_cost>("tree", Collective::kReduce, "log N steps up two binary trees"),
    in_rank_order(row<one_shot_reduce<Recorder>, one_shot_cost>("one_shot", Collective::kReduce,
                                                                "1 step: the root adds everything")),
    in_rank_order(row<two_shot_reduce<Recorder>, two_shot_cost>("two_shot", Collective::kReduce,
                                                                "2 steps: chunks to their owners, sums to the root")),
    pulled(row<pull_reduce<Recorder>, direct_cost>("pull", Collective::kReduce,
                                                   "the root reads and adds everything, between two credit exchanges")),
    in_rank_order(row<pairwise_all_to_all<Recorder>, pairwise_cost>("pairwise", Collective::kAllToAll,
                                                                    "N-1 rounds, one partner in each")),
    in_rank_order(row<one_shot_all_to_all<Recorder>, send_others_cost>("one_shot", Collective::kAllToAll,
                                                                       "1 step: everything at once")),
    pulled(row<pull_all_to_all<Recorder>, direct_cost>("pull", Collective::kAllToAll,
                                                       "read from buffer to buffer, between two credit exchanges")),
    in_rank_order(row<linear_gather<Recorder>, send_own_cost>("linear", Collective::kGather,
                                                              "1 step: each chunk straight to the root")),
    in_rank_order(row<binomial_gather<Recorder>, binomial_gather_cost>("binomial", Collective::kGather,
                                                                       "log N steps: whole subtrees at a time")),
    pulled(row<pull_gather<Recorder>, direct_cost>(
        "pull", Collective::kGather, "read by the root from buffer to buffer, between two credit exchanges")),
    in_rank_order(row<linear_scatter<Recorder>, send_others_cost>("linear", Collective::kScatter,
                                                                  "1 step: each chunk straight from the root")),
    in_rank_order(row<binomial_scatter<Recorder>, binomial_scatter_cost>("binomial", Collective::kScatter,
                                                                         "log N steps: whole subtrees at a time")),
    pulled(row<pull_scatter<Recorder>, direct_cost>("pull", Collective::kScatter,
                                                    "read from the root's buffer, between two credit exchanges")),
    in_rank_order(row<one_shot_barrier<Recorder>, one_shot_barrier_cost>("one_shot", Collective::kBarrier,
                                                                         "1 step: every rank signals every rank")),
    in_rank_order(row<dissemination_barrier<Recorder>, dissemination_cost>("dissemination", Collective::kBarrier,
                                                                           "log N rounds of signals")),
    for_several_hosts(row<hierarchical_all_reduce<Recorder>, hierarchical_all_reduce_cost>(
        "hierarchical", Collective::kAllReduce, "for several hosts: 2 crossings, least bytes across")),
    for_several_hosts(row<hierarchical_one_shot_all_reduce<Recorder>, hierarchical_one_shot_cost>(
        "hierarchical_one_shot", Collective::kAllReduce, "for several hosts: 1 crossing, hosts swap their sums")),
    for_several_hosts(row<hierarchical_reduce_scatter<Recorder>, hierarchical_reduce_scatter_cost>(
        "hierarchical", Collective::kReduceScatter, "for several hosts: 1 crossing, least bytes across")),
    in_rank_order(for_several_hosts(row<hierarchical_all_gather<Recorder>, hierarchical_all_gather_cost>(
        "hierarchical", Collective::kAllGather, "for several hosts: 1 crossing, least bytes across"))),
    in_rank_order(for_several_hosts(row<hierarchical_broadcast<Recorder>, hierarchical_broadcast_cost>(
        "hierarchical", Collective::kBroadcast, "for several hosts: 1 crossing to each host"))),
    for_several_hosts(row<hierarchical_reduce<Recorder>, hierarchical_reduce_cost>(
        "hierarchical", Collective::kReduce, "for several hosts: 1 crossing from each host")),
};

constexpr size_t kNumBuiltIn = std::size(kAlgorithms);

struct Registry {
  std::mutex mutex;  // for writers
  std::array<Algorithm, kMaxAlgorithms> rows;
  std::atomic<size_t> num_rows = kNumBuiltIn;
  std::deque<std::string> texts;  // strings of added algorithms
  bool frozen = false;
  std::string summary;  // once frozen

  Registry() { std::copy(std::begin(kAlgorithms), std::end(kAlgorithms), rows.begin()); }
  std::string_view keep(std::string_view text) { return texts.emplace_back(text); }
};

Registry& registry() {
  static Registry& r = *new Registry;  // never destroyed: threads may still read it when the process ends
  return r;
}

bool is_identifier(std::string_view name) {
  auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && lower(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

template <class... Args>
Status bad_row(fmt::format_string<Args...> what, Args&&... args) {
  return invalid_argument("invalid algorithm: {}", fmt::format(what, std::forward<Args>(args)...));
}

template <class Add>
void add_schedule(const RankSchedule& s, const Add& add) {
  add(uint64_t{s.in_chunks} << 32 | uint64_t{s.out_chunks} << 16 | s.scratch_chunks);
  for (const Lane& lane : s.lanes) {
    add(lane.size());
    for (const Instruction& i : lane) {
      uint64_t words[2];
      static_assert(sizeof(words) == sizeof(i));
      std::memcpy(words, &i, sizeof(i));
      add(words[0]);
      add(words[1]);
    }
  }
  for (const PortSet& set : s.port_sets) {
    add(set.size());
    for (const Port& p : set) add(static_cast<uint64_t>(p.peer) << 32 | uint64_t{p.tag} << 16 | p.group);
  }
}

uint64_t hash_of(std::span<const Algorithm> rows) {
  uint64_t hash = 0;
  auto add = [&hash](uint64_t v) { hash = (hash ^ v) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29; };
  for (const Algorithm& a : rows) {
    for (const char c : a.name) add(static_cast<uint8_t>(c));
    add(static_cast<uint64_t>(a.collective) << 8 | uint64_t{a.direct} << 2 | uint64_t{a.rank_order} << 1 |
        a.pulls_only | uint64_t{a.for_hosts} << 3);
    for (const int n : {2, 3, 5}) {
      add(static_cast<uint64_t>(a.cost(n).steps));  // the planner reads it
      for (Rank r = 0; r < n; ++r)
        add_schedule(record_rank(a, r, n, collective_is_rooted(a.collective) ? n - 1 : 0), add);
    }
    if (!depends_on_hosts(a)) continue;
    const HostLayout hosts = HostLayout::of(std::vector<int>{0, 1, 0, 1, 1});
    add(static_cast<uint64_t>(cost_of(a, hosts).steps));
    for (Rank r = 0; r < hosts.nranks(); ++r)
      add_schedule(record_rank(a, r, hosts, collective_is_rooted(a.collective) ? 4 : 0), add);
  }
  return hash;
}

Status check_new(const Algorithm& row, const Registry& r) {
  if (find_algorithm(row.collective, row.name) != nullptr)
    return bad_row("there is an algorithm {} of {} already", row.name, collective_name(row.collective));
  if (r.frozen)
    return bad_row(
        "{} was registered too late: register algorithms before the first communicator is made, on all ranks",
        row.name);
  if (r.num_rows.load(std::memory_order_relaxed) == kMaxAlgorithms)
    return bad_row("{} exceeds the limit of {} algorithms", row.name, kMaxAlgorithms);
  return {};
}

}  // namespace

std::span<const Algorithm> all_algorithms() {
  const Registry& r = registry();
  return {r.rows.data(), r.num_rows.load(std::memory_order_acquire)};
}

std::span<const Algorithm> own_algorithms() { return all_algorithms().subspan(kNumBuiltIn); }

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective && a.name == name) return &a;
  return nullptr;
}

Status check_row(const Algorithm& row) {
  if (!is_identifier(row.name) || row.name.size() > kMaxAlgorithmName)
    return bad_row("name \"{}\" must be [a-z][a-z0-9_]*, at most {} characters", row.name, kMaxAlgorithmName);
  if (static_cast<int>(row.collective) >= kNumCollectives || is_point_to_point(row.collective))
    return bad_row("{}: collective must be one that all ranks call, not send or recv", row.name);
  if (row.summary.empty() || row.summary.find('\n') != std::string_view::npos)
    return bad_row("{}: summary must be one line", row.name);
  if (row.record == nullptr || row.cost == nullptr) return bad_row("{}: record and cost must be functions", row.name);
  if ((row.record_on_hosts == nullptr) != (row.cost_on_hosts == nullptr) ||
      (row.for_hosts && row.record_on_hosts == nullptr))
    return bad_row("{}: set both record_on_hosts and cost_on_hosts, or neither; for_hosts needs both", row.name);
  if (row.direct && row.record_on_hosts != nullptr)
    return bad_row("{}: a direct algorithm reaches no other host, and cannot have record_on_hosts", row.name);
  if (row.pulls_only && !row.direct) return bad_row("{}: pulls_only requires direct", row.name);
  return {};
}

Status check_new(const Algorithm& row) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  return check_new(row, r);
}

Status add_row(const Algorithm& row) {
  RONDO_TRY(check_row(row));
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  RONDO_TRY(check_new(row, r));
  const size_t at = r.num_rows.load(std::memory_order_relaxed);
  r.rows[at] = row;
  r.rows[at].name = r.keep(row.name);
  r.rows[at].summary = r.keep(row.summary);
  r.num_rows.store(at + 1, std::memory_order_release);
  return {};
}

std::string freeze_registry() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (!r.frozen && !own_algorithms().empty()) {
    for (const Algorithm& a : own_algorithms())
      r.summary += fmt::format("{}{} of {}", r.summary.empty() ? "" : ", ", a.name, collective_name(a.collective));
    r.summary += fmt::format(" (#{:016x})", hash_of(own_algorithms()));
  }
  r.frozen = true;
  return r.summary;
}

}  // namespace rondo
