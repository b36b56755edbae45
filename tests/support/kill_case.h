// Random kills: one number is one case. It determines the ranks, how they are joined, their calls, and who is killed
// with SIGKILL and when. The same number gives the same case again, except for scheduling.
//
// The survivors' errors must name a killed rank and come within a second of the death. Then they shrink (or, if there
// is no communicator yet, meet again) and sum. Nothing may be left behind.
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

/// How ranks are joined: processes over shared memory or TCP, or several threads of each process.
enum class KillWorld { kShm, kTcp, kThreads };

struct KillCase {
  uint64_t seed;
  KillStage stage;
  KillWorld world;
  int nranks;
  int ranks_of_process;   // 1, except for kThreads
  int victim;             // a process
  uint32_t delay_us;      // from the moment when all ranks are there
  Collective collective;  // kCollective
  uint64_t count_elems;
  uint32_t call;  // 0: blocking, 1: with a Work, 2: in a group

  int num_processes() const { return nranks / ranks_of_process; }
  bool is_victim(Rank r) const { return r / ranks_of_process == victim; }
};
KillCase kill_case(uint64_t seed);
/// Describes a case completely.
std::string describe(const KillCase& c);

struct KillOutcome {
  double told_s = 0;                // longest time from the death, or from a later call's begin, to that call's return
  double gone_on_s = 0;             // from there to the last correct sum
  std::string slowest;              // the call of told_s
  std::vector<std::string> faults;  // errors, except times
};
KillOutcome run_kill_case(const KillCase& c);

}  // namespace rondo::testing
