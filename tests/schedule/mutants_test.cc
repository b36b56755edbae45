// labels: unit proof
// timeout: 300
// Tests the checker with seeded bugs: every instruction of every algorithm is broken in all ways below, and the checker
// must notice. A surviving mutant must be proven equivalent: all connections carry the same messages in the same
// sequence, and all outputs have the same expression trees as in the original (traffic_fingerprint), at the same cost,
// with the same lanes proven free of races and deadlocks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "schedule/checker.h"
#include "schedule/linear_texts.h"

namespace rondo {
namespace {

struct Place {
  Rank rank;
  size_t lane, pc;
};

/// Breaks the schedule at a place. Returns false if this way does not apply.
using Mutation = std::function<bool(Schedule& s, const Place& at)>;

RankSchedule& rank_of(Schedule& s, const Place& at) { return s.ranks[static_cast<size_t>(at.rank)]; }
Lane& lane_of(Schedule& s, const Place& at) { return rank_of(s, at).lanes[at.lane]; }
Instruction& instruction_of(Schedule& s, const Place& at) { return lane_of(s, at)[at.pc]; }

/// Gives the instruction its own port set, changed by `change`.
bool change_ports(Schedule& s, const Place& at, bool receiving, const std::function<bool(PortSet&)>& change) {
  RankSchedule& r = rank_of(s, at);
  Instruction& i = instruction_of(s, at);
  uint16_t& set = receiving ? i.recv_set : i.send_set;
  if (set == 0) return false;
  PortSet ports = r.port_sets[set];
  if (!change(ports)) return false;
  set = static_cast<uint16_t>(r.port_sets.size());
  r.port_sets.push_back(std::move(ports));
  return true;
}

Mutation with_instruction(std::function<bool(Instruction&, const RankSchedule&)> change) {
  return [change](Schedule& s, const Place& at) {
    Instruction& i = instruction_of(s, at);
    return i.verb != Verb::kWait && change(i, rank_of(s, at));
  };
}

Mutation with_ports(bool receiving, std::function<bool(PortSet&, const RankSchedule&)> change) {
  return [=](Schedule& s, const Place& at) {
    const RankSchedule& r = rank_of(s, at);
    return change_ports(s, at, receiving, [&](PortSet& p) { return change(p, r); });
  };
}

bool next_peer(PortSet& ports, const RankSchedule& r) {
  Rank& peer = ports[0].peer;
  const Rank before = peer;
  do {
    peer = (peer + 1) % r.nranks;
  } while (peer == r.rank);
  return peer != before;
}

bool move_instruction(Schedule& s, const Place& at) {
  RankSchedule& r = rank_of(s, at);
  if (r.lanes.size() < 2) return false;
  const Instruction moved = instruction_of(s, at);
  lane_of(s, at).erase(lane_of(s, at).begin() + static_cast<ptrdiff_t>(at.pc));
  Lane& other = r.lanes[(at.lane + 1) % r.lanes.size()];
  other.insert(other.begin(), moved);
  return true;
}

bool swap_ports(PortSet& ports, const RankSchedule&) {
  if (ports.size() < 2) return false;
  std::swap(ports.front(), ports.back());
  return true;
}

const std::vector<std::pair<const char*, Mutation>>& mutations() {
  static const std::vector<std::pair<const char*, Mutation>> kAll{
      {"dropped",
       [](Schedule& s, const Place& at) {
         lane_of(s, at).erase(lane_of(s, at).begin() + static_cast<ptrdiff_t>(at.pc));
         return true;
       }},
      {"doubled",
       [](Schedule& s, const Place& at) {
         const Instruction copy = instruction_of(s, at);
         lane_of(s, at).insert(lane_of(s, at).begin() + static_cast<ptrdiff_t>(at.pc), copy);
         return true;
       }},
      {"swapped with the next",
       [](Schedule& s, const Place& at) {
         Lane& lane = lane_of(s, at);
         if (at.pc + 1 >= lane.size() || lane[at.pc] == lane[at.pc + 1]) return false;
         std::swap(lane[at.pc], lane[at.pc + 1]);
         return true;
       }},
      {"moved to another lane", move_instruction},
      {"wrong source chunk", with_instruction([](Instruction& i, const RankSchedule& r) {
         if (!i.has(kVerbSrc) || i.is(kFlagCredit) || r.chunks(i.src_buffer()) < 2) return false;
         i.src_first = static_cast<uint16_t>((i.src_first + 1) % r.chunks(i.src_buffer()));
         return true;
       })},
      {"wrong destination chunk", with_instruction([](Instruction& i, const RankSchedule& r) {
         if (!i.has(kVerbDst) || i.is(kFlagCredit) || r.chunks(i.dst_buffer()) < 2) return false;
         i.dst_first = static_cast<uint16_t>((i.dst_first + 1) % r.chunks(i.dst_buffer()));
         return true;
       })},
      {"wrong source buffer", with_instruction([](Instruction& i, const RankSchedule& r) {
         const Buffer other = i.src_buffer() == Buffer::kIn ? Buffer::kOut : Buffer::kIn;
         if (!i.has(kVerbSrc) || i.is(kFlagCredit) || i.src_first >= r.chunks(other)) return false;
         i.buffers = static_cast<uint8_t>((i.buffers & 0xf0) | static_cast<uint8_t>(other));
         return true;
       })},
      {"final flag flipped", with_instruction([](Instruction& i, const RankSchedule&) {
         i.flags ^= kFlagFinal;
         return true;
       })},
      {"own operand elsewhere in the order", with_instruction([](Instruction& i, const RankSchedule& r) {
         if (!i.has(kVerbSrc) || !i.has(kVerbRecv)) return false;
         i.src_position = static_cast<uint16_t>((i.src_position + 1) % (r.recv_ports(i).size() + 1));
         return true;
       })},
      {"wrong peer to send to", with_ports(false, next_peer)},
      {"wrong peer to receive from", with_ports(true, next_peer)},
      {"wrong tag sent", with_ports(false, [](PortSet& p, const RankSchedule&) { return p[0].tag ^= 1, true; })},
      {"wrong tag received", with_ports(true, [](PortSet& p, const RankSchedule&) { return p[0].tag ^= 1, true; })},
      {"wrong group sent", with_ports(false, [](PortSet& p, const RankSchedule&) { return p[0].group ^= 1, true; })},
      {"receiver forgotten",
       with_ports(false, [](PortSet& p, const RankSchedule&) { return p.pop_back(), !p.empty(); })},
      {"sender forgotten", with_ports(true, [](PortSet& p, const RankSchedule&) { return p.pop_back(), !p.empty(); })},
      {"operands swapped", with_ports(true, swap_ports)},
      {"range shortened", with_instruction([](Instruction& i, const RankSchedule&) {
         if (i.num_chunks < 2) return false;
         --i.num_chunks;
         return true;
       })},
      {"range lengthened", with_instruction([](Instruction& i, const RankSchedule& r) {
         if (i.is(kFlagCredit)) return false;
         const bool src = i.has(kVerbSrc) && i.num_chunks >= r.chunks(i.src_buffer());
         const bool dst = i.has(kVerbDst) && i.num_chunks >= r.chunks(i.dst_buffer());
         if (src || dst) return false;
         ++i.num_chunks;
         return true;
       })},
      {"waits for the instruction before",
       [](Schedule& s, const Place& at) {
         Instruction& i = instruction_of(s, at);
         if (i.verb != Verb::kWait || i.dst_first == 0) return false;
         --i.dst_first;
         return true;
       }},
      {"credit made data", with_instruction([](Instruction& i, const RankSchedule&) {
         if (!i.is(kFlagCredit)) return false;
         i.flags = 0;
         i.num_chunks = 1;
         if (i.has(kVerbDst)) i.buffers = static_cast<uint8_t>(Buffer::kOut) << 4;
         return true;
       })},
      {"direct made staged", with_instruction([](Instruction& i, const RankSchedule&) {
         if (!i.is(kFlagDirect)) return false;
         i.flags ^= kFlagDirect;
         return true;
       })},
  };
  return kAll;
}

/// A definition with waits: the owner's copy must be done before another lane sends it.
void proxied_all_gather(Recorder& p, Rank rank, int nranks) {
  p.chunks(1, nranks);
  p.lane(0);
  p.copy(in(0), out(rank));
  p.lane(1);
  p.wait(0, 0);
  for (int hops = 1; hops < nranks; ++hops) p.send(out(rank), {{(rank + hops) % nranks, 0}});
  p.lane(2);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank owner = (rank + nranks - hops) % nranks;
    p.recv({{owner, 0}}, out(owner));
  }
}

struct Count {
  int made = 0, disproven = 0, reordered = 0, equivalent = 0;
};

class Mutants {
 public:
  /// Breaks `original` at all places in all ways.
  void breed(const std::string& name, const Schedule& original, const CheckClaims& claims) {
    begin(name, original, claims);
    for (const auto& [what, mutate] : mutations())
      for (const RankSchedule& r : original.ranks)
        for (size_t lane = 0; lane < r.lanes.size(); ++lane)
          for (size_t pc = 0; pc < r.lanes[lane].size(); ++pc) {
            Schedule mutant = original;
            if (mutate(mutant, {r.rank, lane, pc}))
              judge(mutant, what, [&, lane = lane, pc = pc] {
                return fmt::format("rank {} lane {} pc {} ({})", r.rank, lane, pc,
                                   instruction_text(r, r.lanes[lane][pc]));
              });
          }
  }

  /// Lets one rank after the other use another root.
  void breed_roots(const std::string& name, const Algorithm& a, int nranks, Rank root, const CheckClaims& claims) {
    const Schedule original = record_all(a, nranks, root);
    begin(name, original, claims);
    for (Rank r = 0; r < nranks; ++r)
      for (Rank other = 0; other < nranks; ++other) {
        if (other == root) continue;
        Schedule mutant = original;
        mutant.ranks[static_cast<size_t>(r)] = record_rank(a, r, nranks, other);
        judge(mutant, "takes another rank for the root",
              [=] { return fmt::format("rank {} believes in {}", r, other); });
      }
  }

  void report() const {
    Count all;
    std::printf("%-36s %7s %10s %12s %11s\n", "seeded bug", "mutants", "disproven", "other order", "equivalent");
    for (const auto& [what, c] : counts_) {
      std::printf("%-36s %7d %10d %12d %11d\n", what.c_str(), c.made, c.disproven, c.reordered, c.equivalent);
      all.made += c.made, all.disproven += c.disproven, all.reordered += c.reordered, all.equivalent += c.equivalent;
    }
    const int killed = all.disproven + all.reordered;
    std::printf("%-36s %7d %10d %12d %11d\n", "all", all.made, all.disproven, all.reordered, all.equivalent);
    std::printf("killed: %d of %d (%.1f %%), of those that are not equivalent: %.1f %%\n", killed, all.made,
                100.0 * killed / all.made, 100.0 * killed / (all.made - all.equivalent));
  }

  int made() const {
    int sum = 0;
    for (const auto& [what, c] : counts_) sum += c.made;
    return sum;
  }
  const std::map<std::string, Count>& counts() const { return counts_; }

 private:
  void begin(const std::string& name, const Schedule& original, const CheckClaims& claims) {
    name_ = name;
    claims_ = claims;
    options_.max_messages_per_chunk = 2;
    before_ = check_schedule(original, options_, claims);
    EXPECT_TRUE(before_.ok) << name << ": " << before_.reason;
  }

  template <class Where>
  void judge(const Schedule& mutant, const char* what, Where where) {
    Count& count = counts_[what];
    ++count.made;
    const CheckReport after = check_schedule(mutant, options_, claims_);
    if (!after.ok) ++count.disproven;
    else if (after.order_fingerprint != before_.order_fingerprint)
      ++count.reordered;  // still a sum, equal on all ranks, but with other bits than before
    else if (after.traffic_fingerprint == before_.traffic_fingerprint) ++count.equivalent;
    else ADD_FAILURE() << name_ << ", " << where() << ", " << what << ": survives, and is not equivalent";
  }

  std::map<std::string, Count> counts_;
  std::string name_;
  CheckOptions options_;
  CheckClaims claims_;
  CheckReport before_;
};

CheckClaims claims_of(const Algorithm& a, const HostLayout& hosts) {
  CheckClaims claims;
  claims.cost = cost_of(a, hosts);
  claims.cost_is_bound = collective_is_rooted(a.collective);
  claims.rank_order = a.rank_order;
  return claims;
}

/// All rows of the registry, and the simplest definition of every collective.
std::vector<Algorithm> rows() {
  std::vector<Algorithm> all(all_algorithms().begin(), all_algorithms().end());
  all.insert(all.end(), std::begin(linear::kRows), std::end(linear::kRows));
  return all;
}

// The same for ranks on several hosts: two of two, ragged, and interleaved.
TEST(Mutants, OfSchedulesForHostsAreKilledOrEquivalent) {
  Mutants mutants;
  for (const Algorithm& a : all_algorithms()) {
    if (!depends_on_hosts(a)) continue;
    for (const char* text : {"2x2", "2+1", "0,1,0,1,0"}) {
      const HostLayout hosts = *HostLayout::parse(text);
      const Rank root = collective_is_rooted(a.collective) ? 1 : 0;
      mutants.breed(fmt::format("{} {}, hosts {}", a.name, collective_name(a.collective), text),
                    record_all(a, hosts, root), claims_of(a, hosts));
    }
  }
  mutants.report();
  EXPECT_GE(mutants.made(), 1000);
}

TEST(Mutants, AreKilledOrEquivalent) {
  Mutants mutants;
  for (const Algorithm& a : rows()) {
    const int before = mutants.made();
    for (int n : {1, 2, 3, 4, 5})
      for (const Rank root : std::set<Rank>{0, collective_is_rooted(a.collective) ? n - 1 : 0}) {
        const CheckClaims claims = claims_of(a, n);
        const std::string name =
            fmt::format("{} {}, {} ranks, root {}", a.name, collective_name(a.collective), n, root);
        mutants.breed(name, record_all(a, n, root), claims);
        if (collective_is_rooted(a.collective)) mutants.breed_roots(name, a, n, root, claims);
      }
    EXPECT_GE(mutants.made() - before, 20) << a.name << " " << collective_name(a.collective);
  }
  Schedule proxied;
  proxied.collective = Collective::kAllGather;
  proxied.nranks = 3;
  for (Rank r = 0; r < 3; ++r) {
    Recorder p(r, 3);
    proxied_all_gather(p, r, 3);
    proxied.ranks.push_back(p.take());
  }
  mutants.breed("relayed all_gather", proxied, {});
  mutants.report();
  EXPECT_GE(mutants.made(), 1000);
  for (const auto& [what, count] : mutants.counts())
    EXPECT_GT(count.disproven + count.reordered, 0) << what << ": no such bug was ever noticed";
}

}  // namespace
}  // namespace rondo
