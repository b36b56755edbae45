// ScheduleProfile: properties of an algorithm on N ranks, derived from its recorded schedule. There are profiles for
// every collective and root, and for added algorithms. The cost model (cost_model.h) turns a profile into a forecast.
//
// Bytes are shares of S, the larger of a call's two buffers. Everything is a pure function of values that are equal on
// all ranks. Therefore all ranks get equal numbers.
#pragma once

#include "algorithms/registry.h"

namespace rondo {

/// One rank's work in one operation if a chunk is one message.
struct RankWork {
  double credits = 0;       // messages without elements, sent or received
  double credit_lines = 0;  // connection ends used by credits
  double steps = 0;         // instructions with data, one for each chunk
  double adding_steps = 0;  // of these: with an addition
  double connections = 0;   // connection ends for data
  double ends = 0;          // connection ends used by messages with data: a header line each
  double ring_share = 0;    // written to and read from data rings or header lines
  double user_share = 0;    // read from and written to the caller's own buffers
  double peer_share = 0;    // read from and written to peers' buffers by direct instructions
  double fresh_share = 0;   // of peer_share: read from data that the peer has just written (its `out`)
  double added_share = 0;   // of peer_share: added to a sum; a copy goes through a block first
  double block_share = 0;   // added_share times the number of peers that share the block
  double pulls = 0;         // reads of a peer's buffer
  double host_messages = 0;  // of steps: messages to and from other hosts
  friend bool operator==(const RankWork&, const RankWork&) = default;
};

struct ScheduleProfile {
  RankWork busiest;                    // the maximum over the ranks, by field
  RankWork others;                     // the mean of the other ranks, by field
  double rounds = 0;                   // see below
  double longest_chunk = 0;            // share of S
  double crossings = 0;                // messages between hosts on the chain with most of them
  double host_share = 0;               // sent to other hosts by the busiest host, once for each reader
  bool serves_variable_counts = true;  // schedule/variable_counts.h
  bool equal_work = true;              // all ranks have the same work
  bool overwrites_input = false;       // a call in place writes all of its rank's input
  bool adds_in_out = false;            // keeps partial sums in the caller's output
  bool sends_final = false;            // complete sums travel
  bool pushes = false;                 // direct: a rank writes into its peers' buffers
  friend bool operator==(const ScheduleProfile&, const ScheduleProfile&) = default;
};

/// Up to this number of ranks all are profiled; beyond it, a few. Direct algorithms are profiled on every rank: in a
/// rooted collective few ranks may access others' buffers, and all must prepare for it.
inline constexpr int kProfiledRanks = 16;
/// The same for ranks on several hosts.
inline constexpr int kProfiledOnHosts = 64;

/// Returns the profile of `algorithm` for ranks on these hosts, `ranks_per_core` of them on each core.
///
/// `rounds` is the number of times that an operation waits for another rank when operations follow each other without
/// pause. To count them, the schedules run without clock or data. In a round each core runs one of its ranks until the
/// rank blocks. Sent messages become visible in the next round. A round is a hand-over if every rank has a core, and a
/// change of rank if ranks share cores. Beyond kProfiledRanks, `rounds` is the algorithm's steps times ranks_per_core.
///
/// `crossings` and `host_share` come from the checker. Beyond kProfiledOnHosts, `crossings` comes from the row
/// (default: as many crossings as steps), and `host_share` from the busiest of three hosts. O(instructions of all
/// profiled ranks), times a dozen for the rounds.
ScheduleProfile profile_schedule(const Algorithm& algorithm, const HostLayout& hosts, Rank root, int ranks_per_core);

/// Returns the work of the busiest rank's core: of that rank and of the others on its core.
RankWork work_of_core(const ScheduleProfile& profile, int ranks_per_core);

/// Returns only the rounds. `schedule` must have all ranks. Returns a negative number if the schedule stops before its
/// end.
double count_rounds(const Schedule& schedule, int ranks_per_core);

}  // namespace rondo
