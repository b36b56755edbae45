// Checker: executes a Schedule on symbolic values and proves what it promises.
//
// A symbolic value stands for the elements of one chunk: which ranks' contributions it holds, of which chunk, how often
// (exact sets up to 64 ranks, fingerprints beyond), and the expression tree of additions that made it. The checker
// walks through the same instructions as the engine and proves, or says which instruction breaks it:
//   - the collective's postcondition on every rank that has an output: every contribution exactly once, of the right
//     chunk; where nothing is summed, the right rank's input; of a barrier, that no rank leaves before all have come;
//   - nobody touches a buffer that its rank does not hold (the input of a broadcast beside the root, and so on);
//   - one expression tree for an element on all ranks (the order of operands counts), in rank order where claimed;
//   - the final flag exactly where a sum becomes complete; `in` is only read while it holds raw input;
//   - every connection has one writing and one reading lane, a multicast one set of readers; no message is left over;
//   - no deadlock, and the smallest FIFO depth that completes, for 1 to max_messages_per_chunk messages per chunk;
//   - lanes of a rank never race, in place included, and nobody touches a peer's buffer outside of its operation
//     (vector clocks: lane order, messages, waits and credits; never the luck of one interleaving);
//   - all of that over several loops that run ahead of one another, for chunks of ragged and zero length, for a count
//     of each rank's own where the schedule serves that (variable_counts.h), and for a second operation that starts on
//     each connection as soon as the first has left it (check_pair);
//   - steps on the critical path, bytes sent and, where they are stated, crossings between hosts equal the row's Cost.
// A network of FIFOs with one reader and one writer each computes the same in every interleaving (Kahn 1974), so one
// execution stands for all; what depends on order is judged by happens-before.
//
// Thread safety: pure functions. Learned from: msccl-tools' collectives (a collective is a pre- and a postcondition),
// FastTrack (Flanagan and Freund 2009) for races by vector clocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/registry.h"
#include "rondo/schedule.h"
#include "schedule/check_text.h"

namespace rondo {

struct CheckOptions {
  int loops = 2;                   // of the data
  int max_messages_per_chunk = 4;  // 1 .. this many FIFO steps for each chunk
  int max_fifo_depth = 64;         // deeper counts as deadlock
  int first_fifo_depth = 1;        // where the search for the smallest depth begins
  int max_race_ranks = 128;        // vector clocks grow with the square: above this, values and deadlocks only
  bool ragged = true;              // chunks of unequal and zero length, variable counts

  /// Values and deadlocks only, in one loop: for thousands of ranks.
  static CheckOptions fingerprints() { return {1, 1, 64, 8, 0, false}; }
};

/// What a schedule is said to do beside its collective; unset: not compared.
struct CheckClaims {
  std::optional<Cost> cost;
  bool cost_is_bound = false;  // less is fine: another root costs that much
  bool rank_order = false;
  std::optional<uint64_t> order_fingerprint;  // the expression trees of an earlier report
};

struct CheckReport {
  bool ok = true;
  std::string reason;  // in words, with line (where known), rank, lane, pc, instruction, remedy; empty when ok
  Rank rank = -1;      // where it broke; -1: of no single place
  int lane = -1;
  int pc = -1;

  int64_t steps = 0;                 // messages on the longest chain of dependent messages, one loop
  int64_t sent_chunks = 0;           // written by the busiest rank, one loop; a multicast counts once
  int64_t crossings = 0;             // messages between hosts on the chain that has most of them
  int64_t host_sent_chunks = 0;      // to other hosts by the busiest host, one loop; a multicast counts for each reader
  int64_t total_chunks = 1;          // that S is cut into
  int64_t scratch_chunks = 0;        // of the rank that needs most
  int fifo_depth = 0;                // smallest that completes, one message per chunk
  int fifo_depth_sliced = 0;         // the same for max_messages_per_chunk and for ragged lengths
  int64_t instructions = 0;          // of all ranks
  int count_patterns = 0;            // over which variable counts were proven; 0: the schedule does not serve them
  uint64_t order_fingerprint = 0;    // of all elements' expression trees
  uint64_t traffic_fingerprint = 0;  // of all connections' messages in sequence, and of the outputs
};

/// Records `algorithm` for all ranks, on such hosts (a number of ranks: on one), and proves it and its row.
/// O(instructions * lanes) with races, else O(instructions). A row's cost is that of its most expensive root: one root
/// alone may cost less.
CheckReport check_algorithm(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options = {},
                            Rank root = 0);
/// Layouts of so many ranks on several hosts with which rows that depend on hosts are proven: by two and by turns, with
/// one rank on each, with ragged ones, such as a rank's loss leaves. Few for many ranks; none for one.
std::vector<HostLayout> layouts_to_prove(int nranks);
/// The roots that check_roots proves: all up to kMaxAllRoots ranks; beyond, 0, 1, N/2, N-2 and N-1, where rotations and
/// trees have their seams. 0 alone where there is no root.
std::vector<Rank> roots_to_prove(Collective collective, int nranks);
inline constexpr int kMaxAllRoots = 16;
/// check_algorithm for each of roots_to_prove; if those are all roots, the most expensive one costs exactly what the
/// row says. The report has the largest figures of all roots; its reason names the root.
CheckReport check_roots(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options = {});
/// Proves a schedule as it stands, whatever made it. `line_of` is asked only when something is wrong.
CheckReport check_schedule(const Schedule& schedule, const CheckOptions& options = {}, const CheckClaims& claims = {},
                           const LineOf& line_of = {});
/// `second` right after `first` on the same connections, without a barrier between them.
CheckReport check_pair(const Algorithm& first, const Algorithm& second, const HostLayout& hosts,
                       const CheckOptions& options = {}, Rank first_root = 0, Rank second_root = 0);
/// The pairs of roots for which check_pair is worth its time: none, equal and different ones, first and last ranks.
std::vector<std::pair<Rank, Rank>> root_pairs_to_prove(Collective first, Collective second, int nranks);
CheckReport check_pair(const Schedule& first, const Schedule& second, const CheckOptions& options = {});

/// "recv_reduce_send in[3], from {1}, to {3}, own after 1": an instruction in words.
std::string instruction_text(const RankSchedule& schedule, const Instruction& instruction);

}  // namespace rondo
