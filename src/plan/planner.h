// Planner: chooses algorithm, protocol and message size for a call, compiles the plan once, and can explain its choice.
//
// All ranks must make the same choice. Therefore it depends only on values that are equal on all of them. These are the
// call's shape, the ranks and their hosts, rank 0's settings and constants (agreed when the communicator was made), and
// whether all ranks can access the communicator's memory.
//
// cost_model.h forecasts the cost of a candidate from its profile (schedule_profile.h). Thread safety: belongs to the
// communicator's driver.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/registry.h"
#include "plan/call.h"
#include "plan/cost_corrections.h"
#include "plan/cost_model.h"
#include "plan/program.h"

namespace rondo {

/// Facts of the ranks' hosts beyond their layout. Equal on all ranks.
struct HostFacts {
  int ranks_per_core = 1;           // rounded up
  bool hosts_pretended = false;     // plans are made for other hosts than the real ones (RONDO_HOSTS)
  bool hosts_share_cores = false;   // hosts share cores, and there are more ranks than cores
  bool hosts_share_kernel = false;  // all hosts run on one kernel, which copies on the ranks' own cores
};
/// Agreed when the communicator is made: rank 0's settings and measured constants.
struct PlannerSettings : HostFacts {
  std::string algorithm;                                     // RONDO_ALGO; empty: free choice
  std::string protocol;                                      // RONDO_PROTO
  uint64_t message_bytes = 0;                                // RONDO_MESSAGE_BYTES; 0: free choice
  uint32_t device_least_blocks = 0, device_most_blocks = 0;  // RONDO_DEVICE_BLOCKS; 0: not said
  CostModel costs = built_in_costs();                        // or measured: RONDO_CALIBRATION
  CostCorrections corrections;                               // likewise; 15 KiB
};

/// One way to run a call, and its forecast.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSimple;
  uint64_t message_bytes = 0;  // longest message
  bool whole_ring = false;     // its messages use the whole ring in turn (protocol/fifo.h), not a lap of few messages
  CostCase cost;               // valid while its planner exists
  CostVector counts{};         // how often each constant counts (cost_counts)
  double forecast_ns = 0;
};

struct Plan {
  CallShape request;
  bool may_be_direct;
  const Algorithm* algorithm;
  std::unique_ptr<Program> program;
  std::unique_ptr<Program> fallback;  // for a direct program
  std::string reason;
};

/// Returns the shape of a call with this algorithm. All ranks must have the same shape.
OperationShape operation_shape(const CallShape& request, uint8_t algorithm);

/// Plans by the shape of their calls. It has sets of four plans, the newest first. A repeated call costs one look-up in
/// a set. P has a `request` and a `may_be_direct`, which is true if the plan was made while peers could reach buffers.
template <class P>
class PlanCache {
 public:
  /// Returns the plan of a shape; nullptr if there is none.
  const std::shared_ptr<P>* find(const CallShape& shape, bool may_be_direct) const {
    const std::shared_ptr<P>* set = &plans_[set_of(shape)];
    for (size_t i = 0; i < kWays; ++i)
      if (set[i] != nullptr && set[i]->request == shape && set[i]->may_be_direct == may_be_direct) [[likely]]
        return &set[i];
    return nullptr;
  }
  /// Adds a plan. The oldest plan of its set is dropped.
  const std::shared_ptr<P>* add(std::shared_ptr<P> plan) {
    std::shared_ptr<P>* set = &plans_[set_of(plan->request)];
    std::move_backward(set, set + kWays - 1, set + kWays);
    set[0] = std::move(plan);
    return set;
  }
  void clear() { std::ranges::fill(plans_, nullptr); }

 private:
  static constexpr size_t kSets = 512, kWays = 4;
  static size_t set_of(const CallShape& s) {
    const uint64_t h = (s.count_elems * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(s.collective) << 32) ^
                       (static_cast<uint64_t>(s.dtype) << 40) ^ (static_cast<uint64_t>(s.op) << 48) ^
                       (static_cast<uint64_t>(s.row) << 52) ^ (static_cast<uint64_t>(s.root) << 16) ^
                       reinterpret_cast<uintptr_t>(s.algorithm);
    return static_cast<size_t>(h ^ h >> 31) % kSets * kWays;
  }
  std::vector<std::shared_ptr<P>> plans_ = std::vector<std::shared_ptr<P>>(kSets * kWays);
};

class Planner {
 public:
  /// `hosts` converts from the number of ranks, for ranks that are all on one host.
  Planner(Rank rank, const HostLayout& hosts, const PlannerSettings& settings, PortTable& ports,
          const KernelTable& kernels);
  /// Returns the plan for a call. A repeated call costs one look-up in a set of four. The driver's current call may
  /// borrow the plan. Other users must share ownership. Errors: kUnsupported (no algorithm can serve the call
  /// as required), the errors of the transport.
  Expected<const std::shared_ptr<Plan>*> plan(const CallShape& request) {
    const bool direct = ports_.transport().may_be_direct();
    if (const auto* known = cache_.find(request, direct)) [[likely]]
      return known;
    return plan_slow(request);
  }
  /// Returns the collective's algorithm with this name. Error: kInvalidArgument with the existing names.
  Expected<const Algorithm*> find(Collective collective, std::string_view name) const;

  /// Returns all ways to run a call that settings and promises permit, the lowest forecast first. The list is equal on
  /// all ranks. Errors: kUnsupported. O(algorithms). The first call with a root takes O(instructions of all
  /// algorithms). staged_only: see usable().
  Expected<std::vector<Candidate>> candidates(const CallShape& request, bool staged_only = false);
  /// Returns the algorithms that settings and promises permit for a call, whatever their cost. The list is equal on all
  /// ranks and never empty. staged_only: only algorithms that do not access peers' buffers. Errors: kUnsupported with
  /// the reason.
  Expected<std::vector<const Algorithm*>> usable(const CallShape& request, bool staged_only = false);
  const ScheduleProfile& profile(const Algorithm& algorithm, Rank root);
  /// Makes later calls of the algorithm's collective use this candidate. nullptr: free choice again. For measurements.
  /// Call it on all ranks, between two operations. It drops all plans.
  void force(const Candidate* candidate);
  const PlannerSettings& settings() const { return settings_; }
  const HostLayout& hosts() const { return hosts_; }
  CostForm form_of(const Candidate& c) const;

 private:
  Expected<const std::shared_ptr<Plan>*> plan_slow(const CallShape& request);
  Status plan_collective(const CallShape& request, Plan& plan);
  Status plan_message(const CallShape& request, Plan& plan);
  Expected<std::unique_ptr<Program>> build(const CallShape& request, const Candidate& c);
  bool is_forced(const CallShape& request, bool staged_only) const {
    return forced_.algorithm != nullptr && forced_.algorithm->collective == request.collective &&
           request.algorithm == nullptr && !staged_only;
  }
  /// Returns the algorithm that the call, force() or RONDO_ALGO names, if that applies; empty: any may serve.
  std::string_view required_name(const CallShape& request, bool staged_only);
  /// Returns true if an algorithm is a candidate when the caller requests `demanded` (a name, or empty).
  bool considered(const Algorithm& a, Collective collective, std::string_view demanded) const;
  bool allowed(const Algorithm& a, const CallShape& request, bool staged_only);
  std::string why_none(const CallShape& request, std::string_view demanded) const;
  /// Sizes of a call. `whole` is the larger of its two buffers in bytes on the wire. chunk(share) returns the longest
  /// chunk of an algorithm, where `share` is that chunk's share of `whole`.
  struct Volume {
    double whole, longest_part;  // longest_part 0: equal parts
    double user = 0;             // `whole` in the callers' types, if these differ from the wire type
    double chunk(double share) const { return longest_part > 0 ? longest_part : share * whole; }
  };
  Volume volume_of(const CallShape& request) const;
  void forecast(Candidate& c, const Volume& v, Rank root);
  void correct(std::vector<Candidate>& found, const Volume& v) const;
  std::vector<uint64_t> message_sizes(Collective collective, double chunk_bytes) const;
  bool may_use_whole_ring(double message_bytes) const;
  uint64_t ring_bytes() const;  // of a connection on one host
  uint64_t long_message(Collective collective, double chunk_bytes) const;
  std::string order_text() const;
  /// Returns the lap (protocol/fifo.h) in messages. A shorter lap keeps more messages in the core's caches. It is used
  /// if ranks share a core, because they share its caches, and between hosts, because messages are longer there.
  uint32_t lap_messages() const { return settings_.ranks_per_core > 1 || !hosts_.one_host() ? kRingMessages : 32; }

  Rank rank_;
  HostLayout hosts_;
  HostLayout hosts_by_rank_;  // for calls with promises about bits
  int nranks_;
  PlannerSettings settings_;
  const size_t measured_world_;  // the world of the corrections in use
  PortTable& ports_;
  const KernelTable& kernels_;
  PlanCache<Plan> cache_;
  std::map<std::pair<const Algorithm*, Rank>, ScheduleProfile> profiles_;
  Candidate forced_;  // no algorithm: free choice
};

}  // namespace rondo
