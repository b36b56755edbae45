// Measures every way in which the planner could run a call, on one rank of a communicator: what `rondo perf --explain`
// prints and `rondo calibrate` fits its constants to.
//
// Calls follow one another without pause, in place where the collective can be; all candidates of a point take turns
// (one burst each, so many times), so that what disturbs the machine disturbs all of them. A burst's time is that of
// its slowest rank. All ranks call the same functions in the same order.
//
// Thread safety: one thread for each rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/planner.h"
#include "rondo/communicator.h"

namespace rondo::tools {

struct MeasuredCandidate {
  Candidate candidate;
  CostForm form = CostForm::kInline;
  std::vector<double> bursts_ns{};  // of a call, in the order in which the candidates took turns

  double median_ns() const;
  double least_ns() const;
};

/// A collective of a size on the ranks of a communicator, by every candidate; the planner's choice stands first.
struct MeasuredPoint {
  Collective collective = Collective::kAllReduce;
  int nranks = 1, ranks_per_core = 1;
  uint64_t bytes = 0;  // S: of the larger of both buffers
  std::vector<MeasuredCandidate> candidates;

  size_t best() const;  // the candidate with the least median
  /// The choice's time over the best candidate's, less 1. Of many candidates the one with the least time is there by
  /// luck too; so it is found in every other burst and compared with the choice in the remaining ones (medians of
  /// ratios of bursts beside one another), then the other way round. Not negative.
  double regret() const;
};

struct CandidateBenchOptions {
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  int bursts = 7;
  double burst_us = 1500;   // about so long, at least one call
  double point_s = 3;       // fewer bursts, though never below 3, where a point would take longer
  bool registered = false;  // buffers from Communicator::alloc: mapped by all ranks
};

/// "ring simple 16384", "one_shot inline": what tells candidates apart.
std::string candidate_name(const Candidate& c);

class CandidateBench {
 public:
  /// Buffers for calls of up to max_bytes. Collective. Throws PerfError.
  CandidateBench(Communicator& comm, uint64_t max_bytes, const CandidateBenchOptions& options);
  ~CandidateBench();
  CandidateBench(const CandidateBench&) = delete;
  CandidateBench& operator=(const CandidateBench&) = delete;

  /// Collective. `bytes`: of the larger of both buffers, rounded down to whole parts, at least one element each.
  /// Throws PerfError.
  MeasuredPoint measure(Collective collective, uint64_t bytes);

 private:
  void force(const Candidate* candidate);
  double over_ranks(double value, Op op);
  void call();
  double burst_ns(uint64_t calls);
  void check(const Status& status) const;

  Communicator& comm_;
  const CandidateBenchOptions options_;
  const int rank_, nranks_;
  uint64_t max_bytes_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  Collective collective_ = Collective::kAllReduce;
  uint64_t count_elems_ = 0;
};

}  // namespace rondo::tools
