// The registry of algorithms. Programs and plugins can add rows to it.
//
// An algorithm has two parts: a template over P that calls the verbs of recorder.h, and a row with its name:
//
//     template <class P>
//     void star_all_reduce(P& p, rondo::Rank rank, int nranks, rondo::Rank root) { ... }
//
//     const rondo::Algorithm star{.name = "star", .collective = rondo::Collective::kAllReduce,
//                                 .summary = "2 steps: all to rank 0, the sum to all",
//                                 .record = star_all_reduce<rondo::Recorder>, .cost = star_cost, .rank_order = true};
//     rondo::Status status = rondo::register_algorithm(star);
//
// The library treats the new row as its own rows. CallOptions::algorithm and RONDO_ALGO can name it. The planner may
// choose it. `rondo check|explain|perf --plugin FILE.so` prove, print and measure it (examples/05_own_algorithm).
//
// Register rows before the first communicator is made. All ranks must register the same rows in the same order. If they
// differ, no communicator is made, and the error names the ranks. A process that loads a plugin itself calls dlopen and
// then rondo_register_algorithms, as the command line does. Thread safety: all functions may be called from any thread.
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
  /// Any collective except send and recv.
  Collective collective;
  /// One line for `rondo check` and other lists.
  std::string_view summary;
  /// Records one rank's part. root is 0 if the collective has none. Registration calls it, and later every plan, from
  /// any thread. The recording must depend on the arguments only. The function must not throw. There are at least two
  /// ranks: a single rank copies its input to its output, whatever the algorithm.
  void (*record)(Recorder& p, Rank rank, int nranks, Rank root);
  /// Returns the cost for the most expensive root, for at least two ranks.
  Cost (*cost)(int nranks);
  /// True if it accesses the peers' own buffers. The peers' buffers must be mapped. If it only pulls, it is enough that
  /// the kernel can copy from them.
  bool direct = false;
  /// True if every sum adds in ascending rank order. The result then has the bits of one process that adds ranks 0 ..
  /// N-1.
  bool rank_order = false;
  /// True if it is direct and only reads from peers' buffers.
  bool pulls_only = false;
  /// Records one rank's part for ranks on several hosts. nullptr: `record` is used there too.
  void (*record_on_hosts)(Recorder& p, Rank rank, const HostLayout& hosts, Rank root) = nullptr;
  /// Returns the cost of record_on_hosts. Set both functions or neither.
  Cost (*cost_on_hosts)(const HostLayout& hosts) = nullptr;
  /// True if it is made for several hosts. On one host it runs only if the caller names it.
  bool for_hosts = false;
};
inline constexpr size_t kMaxAlgorithmName = 23;
inline constexpr size_t kMaxAlgorithms = 255;
/// Version of the layouts on which the compiled code of an algorithm depends: Algorithm, Recorder, RankSchedule.
inline constexpr uint32_t kAlgorithmAbi = 4;

/// Proves a row and adds it permanently. The proof covers 1 to 8 ranks and all roots. For 4 ranks it also covers the
/// row before and after every other row. A row with record_on_hosts is also proven on several hosts. More ranks and
/// other hosts are proven when such a communicator is made. The strings are copied. The functions must stay in memory,
/// therefore a plugin is never closed. Do not pass `abi`: its default is the version of the headers that the caller was
/// compiled with. Errors: kUnsupported for headers with another layout; kInvalidArgument for a wrong field, for a
/// failed proof (names the first wrong instruction), after the first attempt to make a communicator, and beyond
/// kMaxAlgorithms rows. Takes about 0.1 s.
RONDO_API Status register_algorithm(const Algorithm& algorithm, uint32_t abi = kAlgorithmAbi);
/// Returns all rows, the library's own first. Rows are never moved or removed.
RONDO_API std::span<const Algorithm> all_algorithms();
/// Returns the row with this name; nullptr if there is none.
RONDO_API const Algorithm* find_algorithm(Collective collective, std::string_view name);

/// Proves an algorithm on `hosts`, registered or not. The proof covers the result, one order of addition on all ranks,
/// deadlocks, races and the stated cost. For more than 64 ranks it does not cover races. It covers all roots up to 16
/// ranks, and the roots 0, 1, N/2, N-2 and N-1 beyond. Errors: kInvalidArgument with the first wrong instruction and
/// the reason. O(instructions of all ranks).
RONDO_API Status prove_algorithm(const Algorithm& algorithm, const HostLayout& hosts);
/// Returns every step as text, as `rondo explain` prints it. There may be 1 to 256 ranks. The algorithm must be proven
/// for them. If the number of ranks, the root or the algorithm is invalid, it returns a line with the error.
RONDO_API std::string explain_algorithm(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);

}  // namespace rondo

/// A plugin exports this function for `rondo check|explain|perf --plugin FILE.so`. It registers the plugin's algorithms
/// and stores the first error, if any.
extern "C" RONDO_API void rondo_register_algorithms(rondo::Status* status);
