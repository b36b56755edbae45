// ScheduleProfile: what an algorithm does on N ranks, read off its recorded schedule, for any collective and root and
// for algorithms that the library does not know. The cost model (cost_model.h) turns it into a forecast.
//
// Bytes are shares of S, the larger of a call's two buffers. Everything here is a pure function of values that all
// ranks have, so that all ranks get the same numbers.
#pragma once

#include <cstdint>

#include "algorithms/registry.h"

namespace rondo {

/// What a rank does in one operation, as long as a chunk is one message.
struct RankWork {
  double credits = 0;       // messages without elements, sent or received
  double credit_lines = 0;  // connection ends that these touch
  double steps = 0;         // instructions with data, one for each chunk
  double adding_steps = 0;  // of these: the ones that add
  double connections = 0;   // ends of connections for data that it uses
  double ends = 0;          // connection ends that these touch: a header line each
  double ring_share = 0;    // written to and read from data rings or header lines
  double user_share = 0;    // read from and written to the caller's own buffers
  double peer_share = 0;    // read from and written to peers' buffers as direct instructions do
  double fresh_share = 0;   // of peer_share: read from what the peer has just written (its `out`)
  double added_share = 0;   // of peer_share: added to something; where it is copied it goes through a block first
  double block_share = 0;   // added_share times the number of peers that share the block
  double pulls = 0;         // reads of a peer's buffer
  double host_messages = 0;  // of steps: messages to and from other hosts
  friend bool operator==(const RankWork&, const RankWork&) = default;
};

struct ScheduleProfile {
  RankWork busiest;                    // by field
  RankWork others;                     // the mean of the rest: of what all have together, less the busiest's
  double rounds = 0;                   // see below
  double longest_chunk = 0;            // share of S
  double crossings = 0;                // messages between hosts on the chain that has most of them
  double host_share = 0;               // sent to other hosts by the busiest host; to many readers once for each
  bool serves_variable_counts = true;  // schedule/variable_counts.h
  bool adds_in_out = false;            // keeps partial sums in the caller's output
  bool sends_final = false;            // complete sums travel
  bool pushes = false;                 // direct: some rank writes into its peers' buffers
  friend bool operator==(const ScheduleProfile&, const ScheduleProfile&) = default;
};

/// Up to so many ranks all of them are looked at; beyond, a few. Of direct algorithms always all: in a collective
/// with a root few ranks may touch others' buffers, and all must prepare for it.
inline constexpr int kProfiledRanks = 16;
/// The same of ranks on several hosts.
inline constexpr int kProfiledOnHosts = 64;

/// The profile of `algorithm` for ranks on such hosts, `ranks_per_core` of them on each core.
///
/// `rounds`: how often an operation waits for another rank when operations follow one another without pause. The
/// schedules run without clock or data: in a round each core runs one of its ranks until it cannot go on, and what is
/// sent becomes visible in the next round. So where every rank has a core a round is a hand-over, and where ranks
/// share cores it is a change of rank. Beyond kProfiledRanks: the algorithm's steps times ranks_per_core.
/// `crossings` and `host_share`: what the checker finds; beyond kProfiledOnHosts what the row states (else as many
/// crossings as steps), and the busiest of three hosts.
/// O(instructions of all ranks looked at), times a dozen for the rounds.
ScheduleProfile profile_schedule(const Algorithm& algorithm, const HostLayout& hosts, Rank root, int ranks_per_core);

/// What the core of the busiest rank has to do: that rank and others beside it, as work is spread evenly over cores.
RankWork work_of_core(const ScheduleProfile& profile, int ranks_per_core);

/// The rounds alone. `schedule` holds all ranks. Negative: the schedule stops before its end.
double count_rounds(const Schedule& schedule, int ranks_per_core);

}  // namespace rondo
