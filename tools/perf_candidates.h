// Measures every candidate plan for a call on one rank of a communicator. `rondo perf --explain` prints the results,
// and `rondo calibrate` fits its constants to them.
//
// Calls run back to back, in place if possible. The candidates of a point take turns, one burst at a time, so that a
// disturbance affects all of them. A burst's time is the slowest rank's time. All ranks must call the same functions in
// the same order. Thread safety: one thread for each rank.
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
  std::vector<double> bursts_ns{};  // time of a call, by burst

  double median_ns() const;
  double least_ns() const;
};

/// One collective and size, measured with every candidate. The planner's choice is first.
struct MeasuredPoint {
  Collective collective = Collective::kAllReduce;
  int nranks = 1, ranks_per_core = 1;
  uint64_t bytes = 0;  // S: bytes of the larger buffer
  std::vector<MeasuredCandidate> candidates;

  size_t best() const;  // the candidate with the least median
  /// The choice's time over the best candidate's, less 1; not negative. Among many candidates the fastest is partly
  /// luck. Therefore the best is found in every other burst and compared with the choice in the remaining bursts
  /// (median of the ratios of neighbouring bursts), and then the other way round.
  double regret() const;
};

struct CandidateBenchOptions {
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  int bursts = 7;
  double burst_us = 1500;   // about this long, at least one call
  double point_s = 3;       // limit for a point; reduces the bursts, but not below 3
  bool registered = false;  // buffers from Communicator::alloc: mapped by all ranks
};

/// "ring simple 16384", "ring simple 16384 whole" (the whole ring), "one_shot inline": a unique name of the candidate.
std::string candidate_name(const Candidate& c);

class CandidateBench {
 public:
  /// Collective. Makes buffers for calls of up to max_bytes. Throws PerfError.
  CandidateBench(Communicator& comm, uint64_t max_bytes, const CandidateBenchOptions& options);
  ~CandidateBench();
  CandidateBench(const CandidateBench&) = delete;
  CandidateBench& operator=(const CandidateBench&) = delete;

  /// Collective. `bytes`: size of the larger buffer, rounded down to whole parts of at least one element. Throws
  /// PerfError.
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
