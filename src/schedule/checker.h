// Checker: executes a Schedule on symbolic values and proves its properties.
//
// A symbolic value describes the elements of one chunk: the ranks that contributed, their chunk and how often (exact
// sets up to 64 ranks, fingerprints beyond), and the expression tree of additions. The checker executes the same
// instructions as the engine. It proves the following, or names the first wrong instruction:
//   - the collective's postcondition on every rank with an output: every contribution exactly once, of the right chunk;
//     without addition, the right rank's input; for a barrier, no rank leaves before all have come;
//   - no instruction accesses a buffer that its rank does not hold (e.g. the input of a broadcast on a non-root);
//   - one expression tree for an element on all ranks (the order of operands counts), in rank order if claimed;
//   - the final flag exactly on the instruction that completes a sum; `in` is only read while it holds raw input;
//   - every connection has one writing and one reading lane, a multicast one set of readers; no message is left over;
//   - no deadlock, and the smallest FIFO depth that completes, for 1 to max_messages_per_chunk messages per chunk;
//   - lanes of a rank never race, in place included, and no rank accesses a peer's buffer outside of its operation
//     (vector clocks over lane order, messages, waits and credits; independent of one interleaving);
//   - all of that over several overlapping loops, for chunks of ragged and zero length, for variable counts if the
//     schedule serves them (variable_counts.h), and for a second operation that starts on each connection once the
//     first has left it (check_pair);
//   - steps on the critical path, bytes sent and, if stated, crossings between hosts equal the row's Cost.
// A network of FIFOs with one reader and one writer each computes the same in every interleaving (Kahn 1974). One
// execution therefore represents all; happens-before decides order-dependent questions.
//
// Thread safety: pure functions. Learned from: msccl-tools' collectives (a collective is a pre- and a postcondition),
// FastTrack (Flanagan and Freund 2009) for races by vector clocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
  int max_race_ranks = 128;        // vector clocks grow with the square of ranks: above this, values and deadlocks only
  bool ragged = true;              // chunks of unequal and zero length, variable counts

  /// Values and deadlocks only, in one loop: for thousands of ranks.
  static CheckOptions fingerprints() { return {1, 1, 64, 8, 0, false}; }
};

/// Claims about a schedule beyond its collective; unset: not compared.
struct CheckClaims {
  std::optional<Cost> cost;
  bool cost_is_bound = false;  // less is fine: another root has this cost
  bool rank_order = false;
};

struct CheckReport {
  bool ok = true;
  std::string reason;  // line (if known), rank, lane, pc, instruction, remedy; empty if ok
  Rank rank = -1;      // place of the error; -1: no single place
  int lane = -1;
  int pc = -1;

  int64_t steps = 0;                 // messages on the longest chain of dependent messages, one loop
  int64_t sent_chunks = 0;           // written by the busiest rank, one loop; a multicast counts once
  int64_t crossings = 0;             // messages between hosts on the chain with most of them
  int64_t host_sent_chunks = 0;      // to other hosts by the busiest host, one loop; a multicast counts for each reader
  int64_t total_chunks = 1;          // chunks of S
  int64_t scratch_chunks = 0;        // the maximum over ranks
  int fifo_depth = 0;                // smallest depth that completes, one message per chunk
  int fifo_depth_sliced = 0;         // the same for max_messages_per_chunk and for ragged lengths
  int64_t instructions = 0;          // of all ranks
  int count_patterns = 0;            // number of variable counts proven; 0: the schedule does not serve them
  uint64_t order_fingerprint = 0;    // of all elements' expression trees
  uint64_t traffic_fingerprint = 0;  // of all connections' messages in sequence, and of the outputs
};

/// Records `algorithm` for all ranks on these hosts (an int: that many ranks on one host), and proves it and its row.
/// O(instructions * lanes) with races, else O(instructions). A row's cost is that of its most expensive root; a single
/// root may cost less.
CheckReport check_algorithm(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options = {},
                            Rank root = 0);
/// Layouts of nranks ranks on several hosts for proving rows that depend on hosts: two hosts, round robin, one rank
/// per host, and ragged ones, as the loss of ranks leaves them. Few for many ranks; none for one.
std::vector<HostLayout> layouts_to_prove(int nranks);
/// The roots that check_roots proves: all up to kMaxAllRoots ranks; beyond that 0, 1, N/2, N-2 and N-1, the edge cases
/// of rotations and trees. Only 0 if there is no root.
std::vector<Rank> roots_to_prove(Collective collective, int nranks);
inline constexpr int kMaxAllRoots = 16;
/// check_algorithm for each of roots_to_prove. If those are all roots, the most expensive one must cost exactly the
/// row's Cost. The report has the largest figures of all roots; its reason names the root.
CheckReport check_roots(const Algorithm& algorithm, const HostLayout& hosts, const CheckOptions& options = {});
/// Proves a schedule from any source. `line_of` is called only after an error.
CheckReport check_schedule(const Schedule& schedule, const CheckOptions& options = {}, const CheckClaims& claims = {},
                           const LineOf& line_of = {});
/// `second` right after `first` on the same connections, without a barrier between them.
CheckReport check_pair(const Algorithm& first, const Algorithm& second, const HostLayout& hosts,
                       const CheckOptions& options = {}, Rank first_root = 0, Rank second_root = 0);
CheckReport check_pair(const Schedule& first, const Schedule& second, const CheckOptions& options = {});

/// An instruction as text: "recv_reduce_send in[3], from {1}, to {3}, own after 1".
std::string instruction_text(const RankSchedule& schedule, const Instruction& instruction);

}  // namespace rondo
