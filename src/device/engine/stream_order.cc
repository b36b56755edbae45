#include "device/engine/stream_order.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace rondo {
namespace {

using Name = std::tuple<Rank, Rank, uint16_t, uint16_t, bool>;
Name name_of(const ConnectionKey& k) { return {k.writer, k.reader, k.tag, k.group, k.inline_only}; }

struct Wire {
  uint64_t posted = 0;
  std::map<Rank, uint64_t> read;  // by reader
  uint64_t slowest() const {
    uint64_t least = posted;
    for (const auto& [rank, n] : read) least = std::min(least, n);
    return least;
  }
};

bool moves_something(const Program& p, const ProgramStep& s, uint64_t loop) {
  return s.is(kFlagCredit) || loop * p.loop_elems < s.src.num_elems;
}

class Play {
 public:
  Play(const std::vector<std::unique_ptr<Program>>& programs, uint64_t loops_at_once)
      : programs_(programs), loops_at_once_(loops_at_once) {
    for (const auto& p : programs) {
      at_.emplace_back(p->lanes.size());
      orders_.emplace_back();
      for (const auto& [port, steps] : p->reads) wires_[name_of(port->key)].read[p->rank] = 0;
      for (const ProgramLane& lane : p->lanes)
        if (!lane.empty() && p->num_loops != 0) ++left_;
    }
  }

  Expected<std::vector<std::vector<StreamStep>>> run() {
    while (left_ != 0) {
      bool moved = false;
      for (size_t r = 0; r < programs_.size(); ++r)
        for (size_t lane = 0; lane < programs_[r]->lanes.size(); ++lane)
          while (step(r, lane)) moved = true;
      if (!moved)
        return make_error(StatusCode::kInternal, "an algorithm needs more than {} outstanding messages in a connection",
                          kStreamSlots);
    }
    return std::move(orders_);
  }

 private:
  // A lane's next instruction. It runs an instruction for all loops of a batch before the next instruction.
  struct At {
    uint64_t first_loop = 0;  // of the batch
    size_t pc = 0;
    uint64_t loop = 0;
    auto operator<=>(const At&) const = default;
  };

  bool step(size_t r, size_t lane) {
    const Program& p = *programs_[r];
    At& at = at_[r][lane];
    if (p.lanes[lane].empty() || at.loop >= p.num_loops) return false;
    const ProgramStep& s = p.lanes[lane][at.pc];
    if (s.verb == Verb::kWait) {
      if (at_[r][s.wait_lane] <= At{at.first_loop, s.wait_pc, at.loop}) return false;
    } else if (moves_something(p, s, at.loop)) {
      for (const ReadPort* port : s.recv) {
        const Wire& w = wires_[name_of(port->key)];
        if (w.read.at(p.rank) >= w.posted) return false;
      }
      for (const WritePort* port : s.send) {
        const Wire& w = wires_[name_of(port->key)];
        if (w.posted - w.slowest() >= kStreamSlots) return false;
      }
      for (const ReadPort* port : s.recv) ++wires_[name_of(port->key)].read[p.rank];
      for (const WritePort* port : s.send) ++wires_[name_of(port->key)].posted;
      orders_[r].push_back({static_cast<uint16_t>(lane), static_cast<uint16_t>(at.pc), at.loop});
    }
    const uint64_t end = std::min(at.first_loop + loops_at_once_, p.num_loops);
    if (++at.loop != end) return true;
    at.loop = at.first_loop;
    if (++at.pc != p.lanes[lane].size()) return true;
    at = {end, 0, end};
    if (end == p.num_loops) --left_;
    return true;
  }

  const std::vector<std::unique_ptr<Program>>& programs_;
  const uint64_t loops_at_once_;
  std::vector<std::vector<At>> at_;
  std::vector<std::vector<StreamStep>> orders_;
  std::map<Name, Wire> wires_;
  size_t left_ = 0;  // lanes that have not finished
};

}  // namespace

Expected<AllPrograms> compile_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root,
                                  const ProgramShape& shape, Transport& transport, const KernelTable& kernels) {
  const int nranks = hosts.nranks();
  AllPrograms all;
  for (Rank r = 0; r < nranks; ++r) {
    all.ports.push_back(std::make_unique<PortTable>(r, transport));
    ProgramShape theirs = shape;
    VariableCounts counts;
    if (shape.counts != nullptr) {
      RONDO_CHECK(!shape.counts->pairwise);
      counts = *shape.counts;
      const bool gathers = counts.in.counts.size() == 1;
      PartExtents &many = gathers ? counts.out : counts.in, &one = gathers ? counts.in : counts.out;
      one = {{many.counts[static_cast<size_t>(r)]}, {0}};
      theirs.counts = &counts;
    }
    RONDO_TRY_ASSIGN(auto program,
                     compile(record_rank(algorithm, r, hosts, collective_is_rooted(algorithm.collective) ? root : 0),
                             theirs, *all.ports.back(), kernels));
    all.programs.push_back(std::move(program));
  }
  return all;
}

Expected<std::vector<std::vector<StreamStep>>> play_through(const std::vector<std::unique_ptr<Program>>& programs) {
  for (uint64_t loops_at_once = kStreamSlots;; loops_at_once /= 2) {
    auto orders = Play(programs, loops_at_once).run();
    if (orders.ok() || loops_at_once == 1) return orders;
  }
}

std::vector<StreamStep> order_by_distance(const Program& p) {
  struct Keyed {
    int distance;
    uint64_t loop;
    bool receives;
    StreamStep step;
  };
  std::vector<Keyed> all;
  for (size_t lane = 0; lane < p.lanes.size(); ++lane)
    for (size_t pc = 0; pc < p.lanes[lane].size(); ++pc) {
      const ProgramStep& s = p.lanes[lane][pc];
      if (s.verb == Verb::kWait) continue;
      int distance = 0;  // 0: the rank's own part
      if (!s.recv_peers.empty()) distance = (p.rank - s.recv_peers[0] + p.nranks) % p.nranks;
      if (!s.send_peers.empty()) distance = (s.send_peers[0] - p.rank + p.nranks) % p.nranks;
      for (uint64_t loop = 0; loop < p.num_loops && moves_something(p, s, loop); ++loop) {
        all.push_back(
            {distance, loop, !s.recv.empty(), {static_cast<uint16_t>(lane), static_cast<uint16_t>(pc), loop}});
        if (s.is(kFlagCredit)) break;
      }
    }
  std::stable_sort(all.begin(), all.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.distance, a.loop, a.receives) < std::tie(b.distance, b.loop, b.receives);
  });
  std::vector<StreamStep> order;
  for (const Keyed& k : all) order.push_back(k.step);
  return order;
}

}  // namespace rondo
