#include "algorithms/registry.h"

#include "algorithms/ring.h"

namespace rondo {
namespace {

using namespace algorithms;  // NOLINT(google-build-using-namespace): the table reads as names

Cost ring_all_reduce_cost(int n) { return {2 * (n - 1), 2 * (n - 1), n}; }
Cost ring_half_cost(int n) { return {n - 1, n - 1, n}; }

constexpr Algorithm kAlgorithms[] = {
    {"ring", Collective::kAllReduce, "2(N-1) steps to the neighbour, least bytes", ring_all_reduce<Recorder>,
     ring_all_reduce_cost, false, false},
    {"ring", Collective::kReduceScatter, "N-1 steps to the neighbour, least bytes", ring_reduce_scatter<Recorder>,
     ring_half_cost, false, false},
    {"ring", Collective::kAllGather, "N-1 steps to the neighbour, least bytes", ring_all_gather<Recorder>,
     ring_half_cost, false, true},
};

}  // namespace

std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

const Algorithm* find_algorithm(Collective collective, std::string_view name) {
  for (const Algorithm& a : kAlgorithms)
    if (a.collective == collective && a.name == name) return &a;
  return nullptr;
}

RankSchedule record_rank(const Algorithm& algorithm, Rank rank, int nranks) {
  RONDO_CHECK(nranks >= 1 && nranks <= 65535 && rank >= 0 && rank < nranks);
  Recorder recorder(rank, nranks);
  algorithm.record(recorder, rank, nranks);
  return recorder.take();
}

Schedule record_all(const Algorithm& algorithm, int nranks) {
  Schedule s;
  s.collective = algorithm.collective;
  s.nranks = nranks;
  s.ranks.reserve(static_cast<size_t>(nranks));
  for (Rank r = 0; r < nranks; ++r) s.ranks.push_back(record_rank(algorithm, r, nranks));
  return s;
}

}  // namespace rondo
