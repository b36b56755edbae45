#include "device/engine/stream_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace rondo {
namespace {

// A transport whose connections have no memory, for the simulation.
class NoMemory final : public Transport {
 public:
  std::string_view name() const override { return "none"; }
  Expected<FifoView> open_writer(const ConnectionKey&) override { return FifoView(); }
  std::optional<FifoView> open_reader(const ConnectionKey&) override { return std::nullopt; }
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == kUnicast ? 0 : static_cast<uint32_t>(reader);
  }
  StatusPage* page(Rank) override { return nullptr; }
  PairPage* pair_page(Rank) override { return nullptr; }
  Doorbell* bell(Rank) override { return nullptr; }
  void raise_abort(Rank) override {}
  std::optional<Rank> aborted_by() override { return std::nullopt; }
  bool departed(Rank) override { return false; }
  std::optional<PeerLoss> find_lost() override { return std::nullopt; }
  Expected<void*> alloc(uint64_t) override { return Status(StatusCode::kInternal, "no memory here"); }
  Status free(void*) override { return Status(StatusCode::kInternal, "no memory here"); }
  void keep(std::shared_ptr<void>) override {}
};

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
  explicit Play(const std::vector<std::unique_ptr<Program>>& programs) : programs_(programs) {
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
        for (size_t lane = 0; lane < programs_[r]->lanes.size(); ++lane) moved |= step(r, lane);
      if (!moved)
        return Status(
            StatusCode::kInternal,
            fmt::format("an algorithm needs more than {} outstanding messages in a connection", kStreamSlots));
    }
    return std::move(orders_);
  }

 private:
  struct At {
    size_t pc = 0;
    uint64_t loop = 0;
  };

  bool step(size_t r, size_t lane) {
    const Program& p = *programs_[r];
    At& at = at_[r][lane];
    if (p.lanes[lane].empty() || at.loop >= p.num_loops) return false;
    const ProgramStep& s = p.lanes[lane][at.pc];
    if (s.verb == Verb::kWait) {
      const At& other = at_[r][s.wait_lane];
      if (other.loop < at.loop || (other.loop == at.loop && other.pc <= s.wait_pc)) return false;
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
    if (++at.pc == p.lanes[lane].size()) {
      at.pc = 0;
      if (++at.loop == p.num_loops) --left_;
    }
    return true;
  }

  const std::vector<std::unique_ptr<Program>>& programs_;
  std::vector<std::vector<At>> at_;
  std::vector<std::vector<StreamStep>> orders_;
  std::map<Name, Wire> wires_;
  size_t left_ = 0;  // lanes that have not finished
};

}  // namespace

Expected<AllPrograms> compile_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root,
                                  const ProgramShape& shape, const KernelTable& kernels) {
  const int nranks = hosts.nranks();
  AllPrograms all;
  all.nowhere = std::make_unique<NoMemory>();
  for (Rank r = 0; r < nranks; ++r) {
    all.ports.push_back(std::make_unique<PortTable>(r, *all.nowhere));
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
  return Play(programs).run();
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
