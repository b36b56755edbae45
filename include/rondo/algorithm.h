// Algorithms as rows of one registry, open to algorithms from outside of the library.
//
// An algorithm is a template over P written in the words of recorder.h, and a row that names it:
//
//     template <class P>
//     void star_all_reduce(P& p, rondo::Rank rank, int nranks, rondo::Rank root) { ... }
//
//     const rondo::Algorithm star{.name = "star", .collective = rondo::Collective::kAllReduce,
//                                 .summary = "2 steps: all to rank 0, the sum to all",
//                                 .record = star_all_reduce<rondo::Recorder>, .cost = star_cost, .rank_order = true};
//     rondo::Status status = rondo::register_algorithm(star);
//
// From then on it is a row like the library's own: CallOptions::algorithm and RONDO_ALGO name it, the planner may
// choose it, and `rondo check|explain|perf --plugin FILE.so` prove, print and measure it (examples/05_own_algorithm).
//
// Register before the first communicator is made, the same rows in the same order on all ranks: ranks that differ are
// named when they make a communicator. A process that loads plugins itself does as the command line does: dlopen, then
// rondo_register_algorithms. Thread safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "rondo/host_layout.h"
#include "rondo/recorder.h"
#include "rondo/rondo.h"
#include "rondo/schedule.h"
#include "rondo/status.h"

namespace rondo {

/// What an algorithm states about itself; it is proven for every number of ranks that it is used with.
struct Cost {
  int64_t steps;     // messages on the longest chain of dependent messages, one loop
  int64_t sent_num;  // bytes written by the busiest rank = sent_num / sent_den * S; a message to several ranks is
  int64_t sent_den;  // written once and counts once. S: the larger of the in and out buffers (whole_elems)
  int64_t crossings = -1;  // messages between hosts on the chain that has most of them; -1: not stated
};

struct Algorithm {
  /// [a-z][a-z0-9_]*, at most kMaxAlgorithmName characters, once for each collective.
  std::string_view name;
  /// Not send or recv.
  Collective collective;
  /// One line for people.
  std::string_view summary;
  /// Records one rank's part; root is 0 where there is none. Called from any thread, now and whenever a plan is made:
  /// what it records may depend on its arguments alone. It throws nothing.
  void (*record)(Recorder& p, Rank rank, int nranks, Rank root);
  /// Of the most expensive root.
  Cost (*cost)(int nranks);
  /// Touches the peers' own buffers: they must be mapped or, if it only pulls, readable by copy.
  bool direct = false;
  /// Every sum is formed in ascending rank order: the bits that one process gets by adding ranks 0 .. N-1.
  bool rank_order = false;
  /// Direct, and only reads from peers' buffers.
  bool pulls_only = false;
  /// Records one rank's part where ranks stand on several hosts; nullptr: record does, which knows of no hosts.
  void (*record_on_hosts)(Recorder& p, Rank rank, const HostLayout& hosts, Rank root) = nullptr;
  /// Its cost there; both functions, or none.
  Cost (*cost_on_hosts)(const HostLayout& hosts) = nullptr;
  /// Made for ranks on several hosts: where all are on one it runs only when it is named.
  bool for_hosts = false;
};
inline constexpr size_t kMaxAlgorithmName = 23;
inline constexpr size_t kMaxAlgorithms = 255;
/// Of the layouts that an algorithm compiles in: Algorithm, Recorder, RankSchedule.
inline constexpr uint32_t kAlgorithmAbi = 4;

/// Adds a row for good, once it is proven for 1 to 8 ranks and all roots, alone and before and after every other row of
/// 4 ranks; where it records otherwise on several hosts, on those, too. (For more ranks, and other hosts, it is proven
/// when a communicator of them is made.) The texts are copied; the functions must stay, so a plugin is never closed.
/// Leave `abi` alone: it is how the library sees which headers the caller was compiled with. Errors: kUnsupported when
/// that was another layout; kInvalidArgument with what is wrong with the row, or the first instruction that breaks a
/// proof and how; after the first communicator (or unsuccessful try to make one); when there are kMaxAlgorithms rows.
/// About 0.1 s.
RONDO_API Status register_algorithm(const Algorithm& algorithm, uint32_t abi = kAlgorithmAbi);
/// All rows, the library's own first. Rows never move and never go.
RONDO_API std::span<const Algorithm> all_algorithms();
/// nullptr when there is none.
RONDO_API const Algorithm* find_algorithm(Collective collective, std::string_view name);

/// Proves an algorithm, registered or not, for this many ranks on one host or for ranks that stand so on several, and
/// for all roots (beyond 16 ranks: the telling ones): its result, one order of addition on all ranks, no deadlock, no
/// race, its cost. Errors: kInvalidArgument with the first instruction that breaks it and how. O(instructions of all
/// ranks).
RONDO_API Status prove_algorithm(const Algorithm& algorithm, const HostLayout& hosts);
/// Every step, in letters, as `rondo explain` prints it. 1 to 256 ranks, for which the algorithm must be proven. A
/// number of ranks, a root or a text that is none gives a line that says so instead.
RONDO_API std::string explain_algorithm(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);

}  // namespace rondo

/// What a plugin exports for `rondo check|explain|perf --plugin FILE.so`: registers its algorithms and stores the first
/// error, if there is one.
extern "C" RONDO_API void rondo_register_algorithms(rondo::Status* status);
