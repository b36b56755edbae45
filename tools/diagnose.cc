#include "diagnose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace rondo::tools {
namespace {

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  constexpr size_t kShown = 12;
  const size_t more = ranks.size() > kShown ? ranks.size() - kShown : 0;
  ranks.resize(ranks.size() - more);
  return fmt::format("{} {}{}", ranks.size() + more == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                     more != 0 ? fmt::format(" and {} more", more) : "");
}

const CurrentView* oldest_collective(const RankView& r) {
  for (const CurrentView& c : r.current)
    if (!c.point_to_point) return &c;
  return nullptr;
}

std::string last_call(const RankView& r) {
  if (r.posted == 0) return "it has called none so far";
  const auto call = r.calls.find(r.posted);
  std::string text = fmt::format("its last is #{}", r.posted);
  if (call != r.calls.end()) text += ", " + call->second;
  text += r.finished >= r.posted ? ", finished" : ", under way";
  if (r.finished >= r.posted && r.idle_s >= 0) text += fmt::format(" {:.1f} s before", r.idle_s);
  return text;
}

std::string process_text(const RankView& r) { return r.pid != 0 ? fmt::format(" (pid {})", r.pid) : ""; }

class Detective {
 public:
  explicit Detective(const CommunicatorView& comm) : comm_(comm) {
    for (const RankView& r : comm.ranks)
      if (!r.current.empty() || (!r.status.empty() && r.status != "ok")) waiting_.push_back(r.rank);
  }

  std::vector<Finding> run() {
    if (waiting_.empty()) return {};
    find_dead();
    find_stopped();
    find_aborted();
    find_different_calls();
    find_missing_calls();
    if (findings_.empty()) find_cycle();
    if (findings_.empty()) find_stuck();
    if (findings_.empty()) add(Cause::kUnknown, "the records show no cause: " + first_message(), {});
    return std::move(findings_);
  }

 private:
  void add(Cause cause, std::string text, std::vector<int> culprits) {
    findings_.push_back({cause, std::move(text), std::move(culprits)});
  }
  const RankView& at(int rank) const { return comm_.ranks[static_cast<size_t>(rank)]; }
  bool valid(int rank) const { return rank >= 0 && rank < comm_.nranks; }

  std::string waiters() const { return ranks_text(waiting_); }
  const char* wait_or_waits() const { return waiting_.size() == 1 ? "waits" : "wait"; }
  std::string first_message() const {
    for (const RankView& r : comm_.ranks)
      if (!r.message.empty()) return "rank " + std::to_string(r.rank) + " says: " + r.message;
    return fmt::format("{} {}", waiters(), wait_or_waits());
  }

  void find_dead() {
    std::map<int, std::string> dead;
    for (const RankView& r : comm_.ranks) {
      if (r.process == "gone" && !r.departed && !gave_up(r)) dead.emplace(r.rank, "its process is gone");
      if (r.lost_rank && valid(*r.lost_rank) && !at(*r.lost_rank).departed && !gave_up(at(*r.lost_rank)))
        dead[*r.lost_rank] = r.lost_how;
    }
    for (const auto& [rank, how] : dead)
      add(Cause::kDead,
          fmt::format("rank {}{} is dead: {}; {}", rank, process_text(at(rank)), how, last_call(at(rank))), {rank});
    if (!dead.empty()) return;
    for (const RankView& r : comm_.ranks)
      if (r.departed && waited_for(r.rank) && !gave_up(r))
        add(Cause::kDeparted,
            fmt::format("rank {}{} has destroyed its communicator, while {} still {} for it; {}", r.rank,
                        process_text(r), waiters(), wait_or_waits(), last_call(r)),
            {r.rank});
  }

  // It left or ended because of its own failure: a consequence, not a cause.
  static bool gave_up(const RankView& r) { return r.has_record && r.status != "ok"; }
  bool waited_for(int rank) const {
    const uint64_t oldest = oldest_sequence();
    return oldest == 0 || at(rank).finished < oldest;
  }

  void find_stopped() {
    for (const RankView& r : comm_.ranks)
      if (r.process == "stopped")
        add(Cause::kStopped,
            fmt::format("rank {}{} is stopped (SIGSTOP or a debugger); {}", r.rank, process_text(r), last_call(r)),
            {r.rank});
  }

  void find_aborted() {
    std::set<int> by;
    for (const RankView& r : comm_.ranks)
      if (r.aborted_by) by.insert(*r.aborted_by);
    for (const int rank : by) add(Cause::kAborted, fmt::format("rank {} has aborted the communicator", rank), {rank});
  }

  uint64_t oldest_sequence() const {
    uint64_t oldest = 0;
    for (const RankView& r : comm_.ranks)
      if (const CurrentView* c = oldest_collective(r))
        if (oldest == 0 || c->sequence < oldest) oldest = c->sequence;
    return oldest;
  }

  // Finds the first sequence number at which the ranks' calls differ.
  void find_different_calls() {
    std::map<uint64_t, std::map<std::string, std::vector<int>>> by_place;
    for (const RankView& r : comm_.ranks)
      for (const auto& [sequence, call] : r.calls) by_place[sequence][call].push_back(r.rank);
    for (const auto& [sequence, calls] : by_place) {
      if (calls.size() < 2) continue;
      size_t most = 0;
      for (const auto& [call, ranks] : calls) most = std::max(most, ranks.size());
      std::string text = fmt::format("the ranks make different calls as #{}:", sequence);
      std::vector<int> culprits;
      for (const auto& [call, ranks] : calls) {
        text += fmt::format(" {} {} {};", ranks_text(ranks), ranks.size() == 1 ? "calls" : "call", call);
        if (ranks.size() < most) culprits.insert(culprits.end(), ranks.begin(), ranks.end());
      }
      text.pop_back();
      return add(Cause::kDifferentCall, text, culprits);
    }
    for (const RankView& r : comm_.ranks)
      if (r.status == "ranks disagree on the operation") return add(Cause::kDifferentCall, r.message, {});
  }

  // Finds ranks that run, but have not called the operation that others wait in.
  void find_missing_calls() {
    std::map<uint64_t, std::vector<int>> late;  // by the missing sequence number
    for (const RankView& r : comm_.ranks) {
      if (r.process == "gone" || r.process == "stopped" || r.departed || !r.current.empty() || gave_up(r)) continue;
      for (const int w : waiting_)
        if (const CurrentView* c = oldest_collective(at(w)); c != nullptr && c->sequence > r.posted) {
          late[c->sequence].push_back(r.rank);
          break;
        }
    }
    for (const auto& [sequence, ranks] : late) {
      std::vector<int> in_it;
      std::string call;
      for (const int w : waiting_)
        if (const CurrentView* c = oldest_collective(at(w)); c != nullptr && c->sequence == sequence) {
          in_it.push_back(w);
          call = c->call;
        }
      for (const int rank : ranks)
        add(Cause::kMissingCall,
            fmt::format("rank {}{} has not called #{}, {}, in which {} {}; {}", rank, process_text(at(rank)), sequence,
                        call, ranks_text(in_it), in_it.size() == 1 ? "waits" : "wait", last_call(at(rank))),
            {rank});
    }
    find_missing_messages();
  }

  // Finds sends and receives whose peer is in no operation.
  void find_missing_messages() {
    for (const int w : waiting_)
      for (const CurrentView& c : at(w).current) {
        if (!c.point_to_point || !valid(c.peer)) continue;
        const RankView& peer = at(c.peer);
        if (!peer.current.empty() || peer.process == "gone" || peer.process == "stopped" || peer.departed) continue;
        if (gave_up(peer)) continue;
        if (!peer.has_record && peer.posted > peer.finished) continue;  // the peer is in a collective
        add(Cause::kMissingCall,
            fmt::format("rank {}{} has not called the other end of rank {}'s {}{}", c.peer, process_text(peer), w,
                        c.call, c.sequence != 0 ? fmt::format(" (call {} of that pair)", c.sequence) : ""),
            {c.peer});
      }
  }

  struct Edge {
    int to;
    std::string why;
  };
  std::vector<Edge> edges(int rank) const {
    std::vector<Edge> out;
    for (const CurrentView& c : at(rank).current) {
      for (const LaneView& l : c.lanes)
        if (l.state == "waits for data" || l.state == "waits for space")
          for (const int peer : l.peers)
            if (valid(peer))
              out.push_back(
                  {peer, fmt::format("{} {} {} in {} of {}", l.state,
                                     l.state == "waits for data" ? "from rank" : "at rank", peer, l.where, c.call)});
      if (c.begun) break;  // later operations wait for this one
    }
    return out;
  }

  void find_cycle() {
    std::set<int> dead_ends;
    for (const int start : waiting_) {
      std::vector<int> path;
      std::vector<std::string> why;
      if (dead_ends.contains(start) || !walk(start, path, why, dead_ends)) continue;
      const auto begin = std::find(path.begin(), path.end(), path.back()) - path.begin();
      if (std::any_of(path.begin() + begin, path.end(), [&](int rank) { return !stands_still(rank); })) continue;
      std::string text;
      std::vector<int> culprits;
      for (size_t i = static_cast<size_t>(begin); i + 1 < path.size(); ++i) {
        text += fmt::format("rank {} {}; ", path[i], why[i]);
        culprits.push_back(path[i]);
      }
      text.resize(text.size() - 2);
      return add(Cause::kCycle, text, culprits);
    }
  }

  // Records are taken at different moments, and in a healthy ring every rank waits for its neighbour now and then. Only
  // longer waits count.
  bool stands_still(int rank) const {
    constexpr double kStill_s = 0.2;
    return !at(rank).current.empty() && at(rank).current[0].waited_s >= kStill_s;
  }

  // Depth-first search. Returns true if `path` ends with a rank that it already contains. `dead_ends` are ranks that
  // reach no cycle. Without them the search could follow 2^n paths.
  bool walk(int rank, std::vector<int>& path, std::vector<std::string>& why, std::set<int>& dead_ends) const {
    const bool closes = std::find(path.begin(), path.end(), rank) != path.end();
    path.push_back(rank);
    if (closes) return true;
    for (const Edge& e : edges(rank)) {
      if (dead_ends.contains(e.to) || edges(e.to).empty()) continue;
      why.push_back(e.why);
      if (walk(e.to, path, why, dead_ends)) return true;
      why.pop_back();
    }
    path.pop_back();
    dead_ends.insert(rank);
    return false;
  }

  // Finds the ends of the chains of waiting ranks.
  void find_stuck() {
    std::map<int, std::string> ends;
    for (const int w : waiting_)
      for (const Edge& e : edges(w))
        if (edges(e.to).empty()) ends.emplace(e.to, fmt::format("rank {} {}", w, e.why));
    for (const auto& [rank, who] : ends) {
      const RankView& r = at(rank);
      std::string where = r.has_record ? describe_rank(r) : "it left no record; " + last_call(r);
      add(Cause::kStuck, fmt::format("rank {}{} does not move on: {}; {}", rank, process_text(r), where, who), {rank});
    }
  }

  const CommunicatorView& comm_;
  std::vector<int> waiting_;
  std::vector<Finding> findings_;
};

}  // namespace

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kNone: return "nothing";
    case Cause::kDead: return "dead";
    case Cause::kDeparted: return "departed";
    case Cause::kStopped: return "stopped";
    case Cause::kAborted: return "aborted";
    case Cause::kDifferentCall: return "different call";
    case Cause::kMissingCall: return "missing call";
    case Cause::kCycle: return "waiting cycle";
    case Cause::kStuck: return "stuck";
    case Cause::kUnknown: return "unknown";
  }
  return "?";
}

std::vector<Finding> find_causes(const CommunicatorView& comm) { return Detective(comm).run(); }

namespace {

// Process ids identify processes of one host. A rank without a record has no host name.
bool same_process(const RankView& a, const RankView& b) {
  return a.pid != 0 && a.pid == b.pid && (a.host.empty() || b.host.empty() || a.host == b.host);
}

// False if other ranks of this communicator share the process: then its waiting does not identify this rank.
bool waits_elsewhere(const std::vector<CommunicatorView>& comms, const CommunicatorView& in, int rank) {
  const RankView& late = in.ranks[static_cast<size_t>(rank)];
  for (const RankView& r : in.ranks)
    if (r.rank != rank && same_process(r, late)) return false;
  for (const CommunicatorView& c : comms)
    for (const RankView& r : c.ranks)
      if (&c != &in && !r.current.empty() && same_process(r, late)) return true;
  return false;
}

}  // namespace

Verdict find_verdict(const std::vector<CommunicatorView>& comms) {
  Verdict all{find_cycles_between(comms), {}}, causes{all.between, {}};
  bool any = !all.between.empty();
  for (const CommunicatorView& c : comms) {
    all.within.push_back(find_causes(c));
    causes.within.push_back(all.within.back());
    std::erase_if(causes.within.back(), [&](const Finding& f) {
      return (f.cause == Cause::kMissingCall || f.cause == Cause::kDeparted) &&
             std::all_of(f.culprits.begin(), f.culprits.end(),
                         [&](int rank) { return waits_elsewhere(comms, c, rank); });
    });
    any |= !causes.within.back().empty();
  }
  return any ? causes : all;
}

// A rank that is late in one communicator because its process waits in another is a link of the chain, not a cause.
std::vector<Finding> find_cycles_between(const std::vector<CommunicatorView>& comms) {
  struct Node {
    const CommunicatorView* comm;
    const RankView* rank;
  };
  std::vector<Node> waiting;
  for (const CommunicatorView& c : comms)
    for (const RankView& r : c.ranks)
      if (!r.current.empty()) waiting.push_back({&c, &r});
  // The place where the process of a late rank waits.
  auto elsewhere = [&](const CommunicatorView& c, const RankView& late) -> const Node* {
    for (const Node& n : waiting)
      if (n.comm != &c && same_process(*n.rank, late)) return &n;
    return nullptr;
  };
  std::vector<Finding> found;
  std::set<const RankView*> told;
  for (const Node& start : waiting) {
    std::string text = "across communicators:";
    std::vector<int> culprits;
    std::vector<const RankView*> path;
    const Node* n = &start;
    while (n != nullptr && std::find(path.begin(), path.end(), n->rank) == path.end()) {
      path.push_back(n->rank);
      const CurrentView* c = oldest_collective(*n->rank);
      const Node* next = nullptr;
      for (const RankView& late : n->comm->ranks)
        if (c != nullptr && late.current.empty() && late.posted < c->sequence &&
            (next = elsewhere(*n->comm, late)) != nullptr) {
          text += fmt::format(
              " rank {} of {} (pid {}) waits in #{} ({}) for rank {}, whose process {} waits in "
              "communicator {};",
              n->rank->rank, n->comm->id, n->rank->pid, c->sequence, c->call, late.rank, late.pid, next->comm->id);
          culprits.push_back(n->rank->rank);
          break;
        }
      n = next;
    }
    if (n == nullptr || n->rank != start.rank || !told.insert(n->rank).second) continue;
    for (const RankView* r : path) told.insert(r);
    text += " call operations of these communicators in the same order on all ranks";
    found.push_back({Cause::kCycle, text, culprits});
  }
  return found;
}

std::string describe_rank(const RankView& r) {
  std::string text;
  for (const CurrentView& c : r.current) {
    text += fmt::format("{}{}{}{} ({})", text.empty() ? "" : "; ", c.point_to_point ? "call " : "",
                        c.sequence != 0 ? fmt::format("#{} ", c.sequence) : "", c.call, c.how);
    if (!c.begun) text += " has not begun";
    if (c.waited_s > 0) text += fmt::format(", {:.1f} s", c.waited_s);
    for (const LaneView& l : c.lanes) {
      if (l.state == "done") continue;
      text += fmt::format(": {} {}", l.where, l.state);
      if (!l.peers.empty())
        text += fmt::format(" {} {}", l.state == "waits for data" ? "from" : "at", ranks_text(l.peers));
    }
  }
  if (!r.current_known) text = "runs, and its lanes could not be read";
  if (text.empty()) text = "in no operation; " + last_call(r);
  if (!r.has_record) text = "no record; " + last_call(r);
  if (r.process == "gone" || r.process == "stopped") text = r.process + "; " + text;
  if (r.departed) text = "has destroyed its communicator; " + text;
  return text;
}

}  // namespace rondo::tools
