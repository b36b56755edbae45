// The registry of algorithms. Programs and plugins add rows of their own.
//
// An algorithm is a template over P that calls the verbs of recorder.h, and a row that names it:
//
//     template <class P>
//     void star_all_reduce(P& p, rondo::Rank rank, int nranks, rondo::Rank root) { ... }
//
//     const rondo::Algorithm star{.name = "star", .collective = rondo::Collective::kAllReduce,
//                                 .summary = "2 steps: all to rank 0, the sum to all",
//                                 .record = star_all_reduce<rondo::Recorder>, .cost = star_cost, .rank_order = true};
//     rondo::Status status = rondo::register_algorithm(star);
//
// The new row is equal to the library's own: CallOptions::algorithm and RONDO_ALGO name it, the planner may choose it,
// and `rondo check|explain|perf --plugin FILE.so` prove, print and measure it (examples/05_own_algorithm).
//
// Register before the first communicator is made, the same rows in the same order on all ranks. Making a communicator
// fails and names the ranks whose rows differ. A process that loads a plugin itself calls dlopen, then
// rondo_register_algorithms, as the command line does. Thread safety: all functions may be called from any thread.
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

/// The cost that an algorithm states. The checker proves it for every number of ranks in use.
struct Cost {
  int64_t steps;     // messages on the longest chain of dependent messages, one loop
  int64_t sent_num;  // bytes written by the busiest rank = sent_num / sent_den * S, S = the larger of the
  int64_t sent_den;  // in and out buffers (whole_elems). A message to several ranks is written and counted once
  int64_t crossings = -1;  // messages between hosts on the chain with most of them; -1: not stated
};

struct Algorithm {
  /// [a-z][a-z0-9_]*, at most kMaxAlgorithmName characters, unique within the collective.
  std::string_view name;
  /// Not send or recv.
  Collective collective;
  /// One line for people.
  std::string_view summary;
  /// Records one rank's part; root is 0 for collectives without one. Called from any thread, now and whenever a plan is
  /// made. The recording must depend on the arguments only. It throws nothing.
  void (*record)(Recorder& p, Rank rank, int nranks, Rank root);
  /// For the most expensive root.
  Cost (*cost)(int nranks);
  /// Accesses the peers' own buffers. They must be mapped, or readable by copy if the algorithm only pulls.
  bool direct = false;
  /// Every sum is formed in ascending rank order, with the bits of one process that adds ranks 0 .. N-1.
  bool rank_order = false;
  /// Direct, and only reads from peers' buffers.
  bool pulls_only = false;
  /// Records one rank's part for ranks on several hosts. nullptr: record serves them too.
  void (*record_on_hosts)(Recorder& p, Rank rank, const HostLayout& hosts, Rank root) = nullptr;
  /// The cost of record_on_hosts. Set both functions or neither.
  Cost (*cost_on_hosts)(const HostLayout& hosts) = nullptr;
  /// Made for several hosts: on one host it runs only when it is named.
  bool for_hosts = false;
};
inline constexpr size_t kMaxAlgorithmName = 23;
inline constexpr size_t kMaxAlgorithms = 255;
/// Version of the layouts that an algorithm compiles in: Algorithm, Recorder, RankSchedule.
inline constexpr uint32_t kAlgorithmAbi = 4;

/// Adds a row permanently, after proving it for 1 to 8 ranks and all roots, by itself and before and after every other
/// row for 4 ranks. A row with record_on_hosts is also proven on several hosts. (More ranks and other hosts are proven
/// when such a communicator is made.) Strings are copied; the functions must stay, therefore a plugin is never closed.
/// Do not pass `abi`: its default shows the library which headers the caller was compiled with. Errors: kUnsupported
/// for headers with another layout; kInvalidArgument for a wrong field, for a failed proof (names the first wrong
/// instruction), after the first attempt to make a communicator, and beyond kMaxAlgorithms rows. About 0.1 s.
RONDO_API Status register_algorithm(const Algorithm& algorithm, uint32_t abi = kAlgorithmAbi);
/// All rows, the library's own first. Rows are never moved or removed.
RONDO_API std::span<const Algorithm> all_algorithms();
/// nullptr if there is none.
RONDO_API const Algorithm* find_algorithm(Collective collective, std::string_view name);

/// Proves an algorithm, registered or not, on `hosts` and for all roots (beyond 16 ranks: for 0, 1, N/2, N-2 and N-1):
/// the result, one order of addition on all ranks, no deadlock, no race, the stated cost. Errors: kInvalidArgument with
/// the first wrong instruction and the reason. O(instructions of all ranks).
RONDO_API Status prove_algorithm(const Algorithm& algorithm, const HostLayout& hosts);
/// Every step as text, as `rondo explain` prints it. 1 to 256 ranks; the algorithm must be proven for them. For an
/// invalid number of ranks, root or algorithm it returns a line with the error.
RONDO_API std::string explain_algorithm(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);

}  // namespace rondo

/// A plugin exports this function for `rondo check|explain|perf --plugin FILE.so`. It registers the plugin's algorithms
/// and stores the first error, if any.
extern "C" RONDO_API void rondo_register_algorithms(rondo::Status* status);
