// Random kills: one number is one case. It says how many ranks there are and what joins them, what they do, who is
// killed with SIGKILL and when. The same number is the same case again, up to what the scheduler does.
//
// The survivors' errors must name a killed rank, and come within a second of the death; then they shrink (or, where
// there is no communicator yet, meet anew), and sum. Nothing may stay behind.
//
// Thread safety: call from the main thread of a program that has made no communicator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/types.h"

namespace rondo::testing {

enum class KillStage { kInit, kSplit, kShrink, kGrow, kDestroy, kCollective };
inline constexpr int kNumKillStages = 6;
const char* kill_stage_name(KillStage s);

/// How ranks are joined: processes over shared memory or over TCP, or several threads of each process.
enum class KillWorld { kShm, kTcp, kThreads };

struct KillCase {
  uint64_t seed;
  KillStage stage;
  KillWorld world;
  int nranks;
  int ranks_of_process;   // 1, but for kThreads
  int victim;             // a process
  uint32_t delay_us;      // from the moment when all ranks are there
  Collective collective;  // kCollective
  uint64_t count_elems;
  uint32_t call;  // 0: blocking, 1: with a Work, 2: in a group

  int num_processes() const { return nranks / ranks_of_process; }
  bool is_victim(Rank r) const { return r / ranks_of_process == victim; }
};
KillCase kill_case(uint64_t seed);
/// What to say of a case: all of it.
std::string describe(const KillCase& c);

struct KillOutcome {
  double told_s = 0;                // the longest from the death, or a later call's beginning, until that call returned
  double gone_on_s = 0;             // from there until the last had a right sum
  std::string slowest;              // what took told_s
  std::vector<std::string> faults;  // what is wrong, but for times
};
KillOutcome run_kill_case(const KillCase& c);

}  // namespace rondo::testing
