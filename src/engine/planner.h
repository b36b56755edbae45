// Planner: picks algorithm, protocol and message size for a call, compiles the plan once, and can say why it chose.
//
// All ranks must choose alike, so a choice depends only on what is equal on all of them: the call's shape, the number
// of ranks, the settings and constants that were agreed when the communicator was made (rank 0's), and whether memory
// of the communicator is reachable by all. Nothing that only one rank knows enters.
//
// The cost model: steps * hand-over + share * (messages * per-message + bytes * per-byte), where a hand-over is a yield
// and share counts the ranks of a core when ranks outnumber cores (docs/architecture.md, "Planner").
//
// Thread safety: belongs to the communicator's driver.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "algorithms/registry.h"
#include "engine/program.h"
#include "engine/request.h"

namespace rondo {

/// Agreed when the communicator is made: rank 0's environment and measured constants.
struct PlannerSettings {
  char algorithm[32] = {};        // RONDO_ALGO; empty: free choice
  char protocol[16] = {};         // RONDO_PROTO
  uint64_t message_bytes = 0;     // RONDO_MESSAGE_BYTES; 0: free choice
  int32_t ranks_per_core = 1;     // rounded up
  // Constants of a machine of 2023; docs/architecture.md, "Planner", says how they were found.
  double handover_ns = 120;      // a flag from one core to another
  double yield_ns = 700;         // a core from one rank to another
  double message_ns = 70;        // the executor's own time for one message
  double line_ns = 14;           // the same for one header line
  double slot_ns_per_byte = 0.035;  // writing or reading a data slot, which another core reads or wrote
  double big_slot_ns_per_byte = 0.06;  // the same where the data exceed the caches near the cores
  double user_ns_per_byte = 0.010;  // reading or writing a buffer of the caller's
  double peer_ns_per_byte = 0.009;  // reading or writing a peer's buffer
  double pull_call_ns = 650;        // a copy by the kernel: the call
  double pull_ns_per_byte = 0.026;  // and its bytes, of data that their owner has not just written
  double pull_fresh_ns_per_byte = 0.12;  // and that it has (still dirty in the owner's cache)
  double big_pull_ns_per_byte = 0.06;    // either, beyond the caches
  uint64_t big_bytes = 2 << 20;          // what "beyond the caches" means
  double huge_pull_ns_per_byte = 0.14;   // a copy by the kernel of so much that its page walks count
  uint64_t huge_bytes = 48 << 20;
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

class Planner {
 public:
  Planner(Rank rank, int nranks, const PlannerSettings& settings, PortTable& ports, const KernelTable& kernels);
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

 private:
  struct Candidate {
    const Algorithm* algorithm = nullptr;
    Protocol protocol = Protocol::kSimple;
    uint64_t message_bytes = 0;
    double forecast_ns = 0;
  };
  /// What an algorithm does for this N on its busiest rank; bytes as shares of S, the larger of the in and out buffers.
  struct Profile {
    int64_t steps = 0;
    double messages = 0, longest_chunk = 0, pulls = 0;
    double slot_share = 0, user_share = 0, peer_share = 0;  // written or read: slots, own buffers, peers' buffers
    bool serves_variable_counts = true;  // one chunk for each part of a buffer
    bool adds_in_out = false;            // keeps partial sums in the caller's output
    bool sends_final = false;            // complete sums travel
    bool pushes = false;                 // direct: some rank writes into its peers' buffers
  };
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
  const Profile& profile(const Algorithm& algorithm);
  static Profile profile_of(const RankSchedule& s, const Algorithm& algorithm);
  bool allowed(const Algorithm& a, const PlanRequest& request, bool staged_only);
  std::string why_none(const PlanRequest& request, std::string_view demanded) const;
  /// The call in bytes as it travels: S, and the longest chunk of an algorithm that has 1 / share chunks.
  struct Volume {
    double whole, longest_part;  // longest_part 0: equal parts
    double chunk(double share) const { return longest_part > 0 ? longest_part : share * whole; }
  };
  Volume volume_of(const PlanRequest& request) const;
  double forecast_ns(const Candidate& c, const Volume& v);
  uint64_t choose_message_bytes(uint64_t chunk_bytes) const;

  Rank rank_;
  int nranks_;
  PlannerSettings settings_;
  PortTable& ports_;
  const KernelTable& kernels_;
  std::vector<std::shared_ptr<Plan>> cache_;  // kSets sets of kWays, the newest first
  std::unordered_map<const Algorithm*, Profile> profiles_;
};

}  // namespace rondo
