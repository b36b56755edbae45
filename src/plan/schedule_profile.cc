#include "plan/schedule_profile.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "rondo/status.h"
#include "schedule/checker.h"
#include "schedule/variable_counts.h"

namespace rondo {
namespace {

constexpr double RankWork::*kFields[] = {&RankWork::credits,      &RankWork::credit_lines, &RankWork::steps,
                                         &RankWork::adding_steps, &RankWork::connections,  &RankWork::ends,
                                         &RankWork::ring_share,   &RankWork::user_share,   &RankWork::peer_share,
                                         &RankWork::fresh_share,  &RankWork::added_share,  &RankWork::block_share,
                                         &RankWork::pulls,        &RankWork::host_messages};

// A multicast is written once for all its readers.
double written_ends(const PortSet& to) {
  std::set<std::pair<uint16_t, uint16_t>> groups;
  double ends = 0;
  for (const Port& p : to)
    if (p.group == kUnicast || groups.emplace(p.tag, p.group).second) ends += 1;
  return ends;
}

/// Adds up one rank's work, instruction by instruction.
class WorkCounter {
 public:
  WorkCounter(const RankSchedule& s, const Algorithm& algorithm, const HostLayout& hosts, ScheduleProfile& profile)
      : s_(s), hosts_(hosts), profile_(profile) {
    const CollectiveTraits& t = collective_traits(algorithm.collective);
    // If one buffer has a part for each rank, the other one's single chunk has the length of such a part.
    if (t.in_parts == Parts::kEach || t.out_parts == Parts::kEach) whole_ = std::max(s.in_chunks, s.out_chunks);
    profile.overwrites_input = algorithm.collective == Collective::kAllReduce;
    profile.serves_variable_counts &= serves_variable_counts(s, algorithm.collective);
    for (const Lane& lane : s.lanes)
      for (const Instruction& i : lane)
        if (i.verb != Verb::kWait) add(i);
  }
  RankWork work;
  double sent_away = 0;  // to other hosts: share of S

 private:
  void add(const Instruction& i) {
    const auto received = static_cast<double>(s_.recv_ports(i).size());
    const double written = written_ends(s_.send_ports(i));
    if (i.is(kFlagCredit)) {
      work.credits += 1;
      work.credit_lines += received + written;
      return;
    }
    const bool reads_peer = i.is(kFlagDirect) && i.has(kVerbRecv);
    const double cut = whole_ > 0 ? whole_ : s_.chunks(i.has(kVerbSrc) || reads_peer ? i.src_buffer() : i.dst_buffer());
    const double share = i.num_chunks / cut;
    profile_.longest_chunk = std::max(profile_.longest_chunk, 1 / cut);
    profile_.sends_final |= i.is(kFlagFinal) && i.has(kVerbSend);
    profile_.adds_in_out |= i.has(kVerbSrc) && i.has(kVerbRecv) && i.src_buffer() == Buffer::kOut;
    work.user_share += share * ((i.has(kVerbSrc) ? 1 : 0) + (i.has(kVerbDst) ? 1 : 0));
    if (i.is(kFlagDirect)) {
      const auto pushed = static_cast<double>(s_.send_ports(i).size());
      profile_.pushes |= pushed != 0;
      work.peer_share += share * (received + pushed);
      if (i.src_buffer() == Buffer::kOut) work.fresh_share += share * received;
      if (i.has(kVerbSrc)) {
        work.added_share += share * received;
        work.block_share += share * received * received;
      }
      work.pulls += received;
      return;
    }
    work.steps += i.num_chunks;
    if (received + (i.has(kVerbSrc) ? 1 : 0) > 1) work.adding_steps += i.num_chunks;
    for (const Port& p : s_.recv_ports(i)) ends_.emplace(true, p.peer, p.tag, p.group);
    for (const Port& p : s_.send_ports(i)) ends_.emplace(false, p.group == kUnicast ? p.peer : -1, p.tag, p.group);
    work.connections = static_cast<double>(ends_.size());
    work.ends += i.num_chunks * (received + written);
    work.ring_share += share * (received + written);
    const double from_away = away(s_.recv_ports(i)), to_away = away(s_.send_ports(i));
    work.host_messages += i.num_chunks * (from_away + to_away);
    sent_away += share * to_away;
  }

  double away(const PortSet& ports) const {
    return static_cast<double>(
        std::ranges::count_if(ports, [&](const Port& p) { return !hosts_.same_host(s_.rank, p.peer); }));
  }

  const RankSchedule& s_;
  const HostLayout& hosts_;
  ScheduleProfile& profile_;
  double whole_ = 0;
  std::set<std::tuple<bool, Rank, uint16_t, uint16_t>> ends_;  // of data: true for reading, peer, tag, group
};

/// Runs the schedules of all ranks in rounds instead of on a clock.
class Rounds {
 public:
  Rounds(const Schedule& schedule, int ranks_per_core)
      : cores_((schedule.nranks + ranks_per_core - 1) / ranks_per_core) {
    for (const RankSchedule& s : schedule.ranks) ranks_.push_back(prepare(s));
    running_.resize(static_cast<size_t>(cores_));
    for (int c = 0; c < cores_; ++c) running_[c] = c;
  }

  /// Rounds until every rank has finished `operations`, or -1 if nothing moves any more.
  int run_until(int operations) {
    while (std::ranges::any_of(ranks_, [&](const RankState& r) { return r.operation < operations; })) {
      bool moved = false;
      for (int& rank : running_) {
        moved |= run(ranks_[rank]);
        rank += cores_;  // the next rank on this core
        if (rank >= static_cast<int>(ranks_.size())) rank %= cores_;
      }
      for (Connection& c : connections_) c.visible = c.posted;
      ++round_;
      still_ = moved ? 0 : still_ + 1;
      if (still_ > 2 * static_cast<int>(ranks_.size())) return -1;
    }
    return round_;
  }

 private:
  static constexpr int kDepth = 4;  // messages in flight beyond those of one operation
  struct Connection {               // as one reader sees it
    int posted = 0, visible = 0, consumed = 0, room = kDepth;
  };
  struct Step {
    std::vector<int> recv, send;  // connections
    int wait_lane = -1, wait_pc = 0;
  };
  struct RankState {
    std::vector<std::vector<Step>> lanes;
    std::vector<size_t> pc;
    int operation = 0;
  };

  int connection(Rank writer, Rank reader, const Port& p) {
    auto [it, fresh] = index_.try_emplace({writer, reader, p.tag, p.group}, static_cast<int>(connections_.size()));
    if (fresh) connections_.emplace_back();
    return it->second;
  }
  RankState prepare(const RankSchedule& s) {
    RankState r;
    for (const Lane& lane : s.lanes) {
      r.lanes.emplace_back();
      for (const Instruction& i : lane) {
        Step step;
        if (i.verb == Verb::kWait) {
          step.wait_lane = i.src_first;
          step.wait_pc = i.dst_first;
        } else if (!i.is(kFlagDirect)) {
          for (const Port& p : s.recv_ports(i)) step.recv.push_back(connection(p.peer, s.rank, p));
          for (const Port& p : s.send_ports(i)) step.send.push_back(connection(s.rank, p.peer, p));
          for (int c : step.send) ++connections_[c].room;
        }
        r.lanes.back().push_back(std::move(step));
      }
    }
    r.pc.assign(r.lanes.size(), 0);
    return r;
  }

  bool possible(const RankState& r, const Step& s) const {
    if (s.wait_lane >= 0) return r.pc[s.wait_lane] > static_cast<size_t>(s.wait_pc);
    for (int c : s.recv)
      if (connections_[c].visible <= connections_[c].consumed) return false;
    for (int c : s.send)
      if (connections_[c].posted - connections_[c].consumed >= connections_[c].room) return false;
    return true;
  }

  // Runs a rank until it blocks. Calls block, therefore an operation begins when all lanes of the previous one are
  // done.
  bool run(RankState& r) {
    bool any = false;
    for (bool moved = true; moved && r.operation < kMostOperations;) {
      moved = false;
      bool finished = true;
      for (size_t lane = 0; lane < r.lanes.size(); ++lane) {
        size_t& pc = r.pc[lane];
        while (pc < r.lanes[lane].size() && possible(r, r.lanes[lane][pc])) {
          for (int c : r.lanes[lane][pc].recv) ++connections_[c].consumed;
          for (int c : r.lanes[lane][pc].send) ++connections_[c].posted;
          ++pc;
          moved = true;
        }
        finished &= pc == r.lanes[lane].size();
      }
      if (finished) {
        r.pc.assign(r.lanes.size(), 0);
        ++r.operation;
        moved = true;
      }
      any |= moved;
    }
    return any;
  }

  static constexpr int kMostOperations = 64;  // an empty schedule must not run forever
  int cores_, round_ = 0, still_ = 0;
  std::vector<RankState> ranks_;
  std::vector<int> running_;  // by core
  std::vector<Connection> connections_;
  std::map<std::tuple<Rank, Rank, uint16_t, uint16_t>, int> index_;
};

std::vector<Rank> ranks_to_profile(const Algorithm& algorithm, const HostLayout& hosts, Rank root) {
  const int nranks = hosts.nranks();
  std::set<Rank> ranks;
  if (nranks <= (hosts.one_host() ? kProfiledRanks : kProfiledOnHosts) || algorithm.direct)
    for (Rank r = 0; r < nranks; ++r) ranks.insert(r);
  else ranks = {0, 1, nranks / 2, nranks - 1, root, (root + 1) % nranks, (root + nranks / 2) % nranks};
  if (!hosts.one_host())
    for (const int host : {0, hosts.num_hosts() / 2, hosts.num_hosts() - 1}) {
      if (ranks.size() > kProfiledOnHosts) break;
      for (int l = 0; l < hosts.num_ranks(host); ++l) ranks.insert(hosts.rank(host, l));
    }
  return {ranks.begin(), ranks.end()};
}

// Messages and bytes between hosts, over all ranks.
void look_across(const Algorithm& algorithm, const HostLayout& hosts, const Schedule& schedule,
                 ScheduleProfile& profile) {
  const Cost cost = cost_of(algorithm, hosts);
  profile.crossings = static_cast<double>(cost.crossings >= 0 ? cost.crossings : cost.steps);
  if (hosts.nranks() > kProfiledOnHosts) return;
  const CheckReport found = check_schedule(schedule, CheckOptions::fingerprints());
  RONDO_CHECK(found.ok);  // the library's own, or proven at registration
  profile.crossings = static_cast<double>(found.crossings);
  profile.host_share = static_cast<double>(found.host_sent_chunks) / static_cast<double>(found.total_chunks);
}

}  // namespace

RankWork work_of_core(const ScheduleProfile& profile, int ranks_per_core) {
  RankWork work = profile.busiest;
  for (auto field : kFields) work.*field += (ranks_per_core - 1) * profile.others.*field;
  return work;
}

double count_rounds(const Schedule& schedule, int ranks_per_core) {
  constexpr int kBegin = 4, kEnd = 12;  // between these the distance of the ranks is stable
  Rounds rounds(schedule, ranks_per_core);
  const int begin = rounds.run_until(kBegin), end = begin < 0 ? -1 : rounds.run_until(kEnd);
  return end < 0 ? -1 : static_cast<double>(end - begin) / (kEnd - kBegin);
}

ScheduleProfile profile_schedule(const Algorithm& algorithm, const HostLayout& hosts, Rank root, int ranks_per_core) {
  const int nranks = hosts.nranks();
  ScheduleProfile profile;
  Schedule schedule{algorithm.collective, nranks, root, {}, hosts.hosts()};
  for (Rank r : ranks_to_profile(algorithm, hosts, root))
    schedule.ranks.push_back(record_rank(algorithm, r, hosts, root));
  RankWork sum;
  std::optional<RankWork> first;
  std::map<int, double> sent_by_host;
  for (const RankSchedule& s : schedule.ranks) {
    const WorkCounter counter(s, algorithm, hosts, profile);
    const RankWork& work = counter.work;
    if (!first) first = work;
    profile.equal_work &= work == *first;
    double& sent = sent_by_host[hosts.host(s.rank)];
    profile.host_share = std::max(profile.host_share, sent += counter.sent_away);
    for (auto field : kFields) {
      profile.busiest.*field = std::max(profile.busiest.*field, work.*field);
      sum.*field += work.*field;
    }
  }
  if (const size_t rest = schedule.ranks.size() - 1; rest > 0)
    for (auto field : kFields)
      profile.others.*field = (sum.*field - profile.busiest.*field) / static_cast<double>(rest);
  if (nranks <= kProfiledRanks) profile.rounds = count_rounds(schedule, ranks_per_core);
  if (nranks > kProfiledRanks || profile.rounds < 0)
    profile.rounds = static_cast<double>(cost_of(algorithm, hosts).steps) * ranks_per_core;
  if (!hosts.one_host()) look_across(algorithm, hosts, schedule, profile);
  return profile;
}

}  // namespace rondo
