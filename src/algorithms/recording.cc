// Turns definitions into schedules (registry.h): of one rank or of all ranks, proven or not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "algorithms/registry.h"

namespace rondo {
namespace {

// The layout that a definition follows. On one host, the library's own host-aware definitions follow its places,
// because they use no port groups (which span whole hosts).
const HostLayout& followed_by(const Algorithm& algorithm, const HostLayout& hosts) {
  if (!hosts.one_host() || algorithm.for_hosts || hosts.places().one_host()) return hosts;
  const std::span<const Algorithm> ours(all_algorithms().data(), own_algorithms().data());
  const bool is_ours = std::ranges::any_of(
      ours, [&](const Algorithm& a) { return a.collective == algorithm.collective && a.name == algorithm.name; });
  return is_ours ? hosts.places() : hosts;
}

// A single rank keeps its data, whatever the algorithm.
void record_alone(Recorder& recorder, Collective collective) {
  recorder.chunks(1, 1);
  recorder.lane(0);
  if (collective != Collective::kBarrier)
    recorder.copy(in(0), out(0), collective_reduces(collective) ? Sum::kFinal : Sum::kPartial);
}

void record_into(Recorder& recorder, const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root) {
  const int nranks = hosts.nranks();
  RONDO_CHECK(nranks >= 1 && nranks <= 65535 && rank >= 0 && rank < nranks && root >= 0 && root < nranks);
  if (nranks == 1) return record_alone(recorder, algorithm.collective);
  const HostLayout& places = followed_by(algorithm, hosts);
  if (places.one_host() || algorithm.record_on_hosts == nullptr) algorithm.record(recorder, rank, nranks, root);
  else algorithm.record_on_hosts(recorder, rank, places, root);
}

Schedule empty_schedule(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  Schedule s;
  s.collective = algorithm.collective;
  s.nranks = hosts.nranks();
  s.root = root;
  s.hosts = hosts.hosts();
  s.ranks.reserve(static_cast<size_t>(s.nranks));
  return s;
}

}  // namespace

Cost cost_of(const Algorithm& algorithm, const HostLayout& hosts) {
  if (hosts.nranks() == 1) return {0, 0, 1, 0};
  const HostLayout& places = followed_by(algorithm, hosts);
  if (places.one_host() || algorithm.cost_on_hosts == nullptr) return algorithm.cost(hosts.nranks());
  Cost cost = algorithm.cost_on_hosts(places);
  if (hosts.one_host()) cost.crossings = -1;
  return cost;
}

Expected<RankSchedule> try_record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root) {
  Recorder recorder(rank, hosts.nranks());
  record_into(recorder, algorithm, rank, hosts, root);
  if (!recorder.error().empty()) return Status(StatusCode::kInvalidArgument, recorder.error());
  return recorder.take();
}

TextLines record_lines(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root) {
  TextLines lines;
  Recorder recorder(rank, hosts.nranks());
  recorder.keep_lines(&lines);
  record_into(recorder, algorithm, rank, hosts, root);
  return lines;
}

RankSchedule record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root) {
  Expected<RankSchedule> recorded = try_record_rank(algorithm, rank, hosts, root);
  if (!recorded.ok()) {
    std::fprintf(stderr, "rondo: algorithm %.*s: %s\n", static_cast<int>(algorithm.name.size()), algorithm.name.data(),
                 recorded.status().to_string().c_str());
    std::abort();
  }
  return std::move(*recorded);
}

// The messages of a pair have their own tags, because they are not ordered with the surrounding collectives.
RankSchedule record_point_to_point(Collective send_or_recv, Rank rank, int nranks, Rank peer, bool matched) {
  RONDO_CHECK(is_point_to_point(send_or_recv));
  Recorder recorder(rank, nranks);
  recorder.chunks(1, 1);
  recorder.lane(0);
  const PortSet port{{peer, matched ? kTagMatched : kTagPointToPoint}};
  const bool sends = send_or_recv == Collective::kSend;
  if (sends && matched) recorder.send_credit(port);
  if (sends) recorder.send(in(0), port);
  else if (peer >= 0) recorder.recv(port, out(0));
  RONDO_CHECK(recorder.error().empty());
  return recorder.take();
}

Schedule record_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  Schedule s = empty_schedule(algorithm, hosts, root);
  for (Rank r = 0; r < s.nranks; ++r) s.ranks.push_back(record_rank(algorithm, r, hosts, root));
  return s;
}

UnprovenSchedule record_unproven(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  UnprovenSchedule u;
  u.schedule = empty_schedule(algorithm, hosts, root);
  for (Rank r = 0; r < u.schedule.nranks; ++r) {
    Recorder recorder(r, u.schedule.nranks);
    record_into(recorder, algorithm, r, hosts, root);
    if (u.error.empty() && !recorder.error().empty()) {
      u.error = recorder.error();
      u.rank = r;
      u.lane = static_cast<int>(recorder.current_lane());
    }
    u.schedule.ranks.push_back(recorder.take());
    const std::vector<Lane>& lanes = u.schedule.ranks.back().lanes;
    if (u.rank == r && static_cast<size_t>(u.lane) < lanes.size()) u.pc = static_cast<int>(lanes[u.lane].size());
  }
  return u;
}

}  // namespace rondo
