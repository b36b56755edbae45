// Planner: picks algorithm, protocol and message size for a call, compiles the plan once, and can say why it chose.
//
// All ranks must choose alike, so a choice depends only on what is equal on all of them: the call's shape, the number
// of ranks and the hosts on which they stand, the settings and constants that were agreed when the communicator was
// made (rank 0's), and whether memory of the communicator is reachable by all. Nothing that only one rank knows enters.
//
// What a candidate costs is forecast by cost_model.h from schedule_profile.h.
//
// Thread safety: belongs to the communicator's driver.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/registry.h"
#include "plan/cost_corrections.h"
#include "plan/cost_model.h"
#include "plan/program.h"
#include "plan/request.h"

namespace rondo {

/// What a rank brings to the agreement; rank 0's counts.
struct PlannerChoice {
  char algorithm[32] = {};        // RONDO_ALGO; empty: free choice
  char protocol[16] = {};         // RONDO_PROTO
  uint64_t message_bytes = 0;     // RONDO_MESSAGE_BYTES; 0: free choice
  int32_t ranks_per_core = 1;     // rounded up
  int32_t device_inline = 0;      // RONDO_DEVICE_INLINE: 1: by kernels that have the text inlined, where there are any
  int32_t device_min_blocks = 1;  // RONDO_DEVICE_MIN_BLOCKS
  int32_t device_max_blocks = 0;  // RONDO_DEVICE_MAX_BLOCKS; 0: as many as are resident
  int32_t by_rank = 0;            // RONDO_ORDER: 1: rings and trees go by rank, wherever ranks are bound
  int32_t hosts_pretended = 0;    // the hosts that plans are made for are not where the ranks are (RONDO_HOSTS)
  int32_t hosts_share_cores = 0;  // and ranks outnumber them: while one works another has to wait
  int32_t hosts_share_kernel = 0;      // all hosts do: it copies what their link carries, on the ranks' own cores
  CostModel costs = built_in_costs();  // or measured: RONDO_CALIBRATION
};
/// Agreed when the communicator is made: rank 0's environment and measured constants.
struct PlannerSettings : PlannerChoice {
  CostCorrections corrections;  // likewise; 12 KiB
};

/// One way to run a call, and its forecast.
struct Candidate {
  const Algorithm* algorithm = nullptr;
  Protocol protocol = Protocol::kSimple;
  uint64_t message_bytes = 0;  // longest message
  CostVector counts{};         // of each constant
  double forecast_ns = 0;
};

struct Plan {
  PlanRequest request;
  std::unique_ptr<VariableCounts> counts;  // what request.counts points to
  bool may_be_direct;
  const Algorithm* algorithm;
  std::unique_ptr<Program> program;
  std::unique_ptr<Program> fallback;  // of a direct program
  std::string reason;
};

/// What all ranks must agree on of a call that runs by this algorithm.
OperationShape operation_shape(const PlanRequest& request, uint8_t algorithm);

class Planner {
 public:
  /// hosts: a number of ranks where all are on one.
  Planner(Rank rank, const HostLayout& hosts, const PlannerSettings& settings, PortTable& ports,
          const KernelTable& kernels);
  /// The plan for a call; a repeated call costs one look into a set of four. Plans in use by others than the driver's
  /// current call must be shared. Errors: kUnsupported (a promise or setting that cannot be kept), the transport's.
  Expected<const std::shared_ptr<Plan>*> plan(const PlanRequest& request) {
    const bool direct = ports_.transport().may_be_direct();
    std::shared_ptr<Plan>* set = &cache_[hash(request) % kSets * kWays];
    for (size_t i = 0; i < kWays; ++i)
      if (set[i] != nullptr && set[i]->request == request && set[i]->may_be_direct == direct) [[likely]] return &set[i];
    return plan_slow(request, set);
  }
  /// The algorithm of that name for the collective, or kInvalidArgument with the names that exist.
  Expected<const Algorithm*> find(Collective collective, std::string_view name) const;

  /// All ways to run a call that settings and promises leave, the one with the least forecast first; equal on all
  /// ranks. Errors: kUnsupported. O(algorithms), the first time for a number of ranks and a root O(their
  /// instructions).
  Expected<std::vector<Candidate>> candidates(const PlanRequest& request) { return candidates(request, false); }
  /// The algorithms that may serve a call, by settings and promises, whatever they cost; equal on all ranks, never
  /// empty. Errors: kUnsupported, with the reason.
  /// staged_only: that do not touch peers' buffers.
  Expected<std::vector<const Algorithm*>> usable(const PlanRequest& request, bool staged_only = false);
  const ScheduleProfile& profile(const Algorithm& algorithm, Rank root);
  /// From now on collectives that have this algorithm run as the candidate says; nullptr: a free choice again. For
  /// measurements; all ranks have to do alike, between two operations. Drops all plans.
  void force(const Candidate* candidate);
  const PlannerSettings& settings() const { return settings_; }
  const HostLayout& hosts() const { return hosts_; }
  CostForm form_of(const Candidate& c) const;

 private:
  static constexpr size_t kSets = 512, kWays = 4;

  static size_t hash(const PlanRequest& r) {
    const uint64_t h = (r.count_elems * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(r.collective) << 32) ^
                       (static_cast<uint64_t>(r.dtype) << 40) ^ (static_cast<uint64_t>(r.op) << 48) ^
                       (static_cast<uint64_t>(r.row) << 52) ^ (static_cast<uint64_t>(r.root) << 16) ^
                       reinterpret_cast<uintptr_t>(r.algorithm);
    return static_cast<size_t>(h ^ h >> 31);
  }
  Expected<const std::shared_ptr<Plan>*> plan_slow(const PlanRequest& request, std::shared_ptr<Plan>* set);
  Expected<std::vector<Candidate>> candidates(const PlanRequest& request, bool staged_only);
  Status plan_collective(const PlanRequest& request, Plan& plan);
  Status plan_message(const PlanRequest& request, Plan& plan);
  Expected<std::unique_ptr<Program>> build(const PlanRequest& request, const Candidate& c);
  /// Whether an algorithm is looked at when `demanded` is (a name, or empty).
  bool considered(const Algorithm& a, Collective collective, std::string_view demanded) const;
  bool allowed(const Algorithm& a, const PlanRequest& request, bool staged_only);
  std::string why_none(const PlanRequest& request, std::string_view demanded) const;
  /// The call in bytes as it travels: S, and the longest chunk of an algorithm that has 1 / share chunks.
  struct Volume {
    double whole, longest_part;  // longest_part 0: equal parts
    double user = 0;             // S as the callers hold it, where that is not what travels
    double chunk(double share) const { return longest_part > 0 ? longest_part : share * whole; }
  };
  Volume volume_of(const PlanRequest& request) const;
  void forecast(Candidate& c, const Volume& v, Rank root);
  void correct(std::vector<Candidate>& found, const Volume& v) const;
  std::vector<uint64_t> message_sizes(Collective collective, double chunk_bytes) const;
  uint64_t long_message(Collective collective, double chunk_bytes) const;
  std::string order_text() const;
  /// Ranks that share a core share its caches: the fewer lines their messages go round in, the more of them stay there.
  /// And so with the longer messages between hosts.
  uint32_t lap_messages() const { return settings_.ranks_per_core > 1 || !hosts_.one_host() ? kRingMessages : 32; }

  Rank rank_;
  HostLayout hosts_;
  HostLayout hosts_by_rank_;  // for calls that are promised bits
  int nranks_;
  PlannerSettings settings_;
  const size_t measured_world_;  // whose corrections count
  PortTable& ports_;
  const KernelTable& kernels_;
  std::vector<std::shared_ptr<Plan>> cache_;  // kSets sets of kWays, the newest first
  std::map<std::pair<const Algorithm*, Rank>, ScheduleProfile> profiles_;
  Candidate forced_;  // no algorithm: a free choice
};

}  // namespace rondo
