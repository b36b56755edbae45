// The registry: one row for each (algorithm, collective). The planner, the checker, the conformance tests, the
// benchmarks and the documentation find algorithms here and nowhere else.
//
// Adding an algorithm: write its header, add its rows to the table in registry.cc. Nothing else.
#pragma once

#include <span>
#include <string_view>

#include "rondo/recorder.h"
#include "rondo/schedule.h"
#include "rondo/status.h"

namespace rondo {

/// What an algorithm states about itself; the checker proves it for every N.
struct Cost {
  int64_t steps;     // messages on the longest chain of dependent messages, one loop
  int64_t sent_num;  // bytes sent by the busiest rank = sent_num / sent_den * S; a multicast message counts once
  int64_t sent_den;  // S: the larger of the in and out buffers (whole_elems)
};

struct Algorithm {
  std::string_view name;
  Collective collective;
  std::string_view summary;  // one line for people
  void (*record)(Recorder& p, Rank rank, int nranks, Rank root);  // root: 0 where there is none
  Cost (*cost)(int nranks);
  bool direct;      // touches the peers' own buffers: they must be mapped (or, if it only pulls, readable by copy)
  bool rank_order;  // every sum is formed in ascending rank order: the bits that one process gets by adding 0..N-1
  bool pulls_only = false;  // direct, and only reads from them
};

std::span<const Algorithm> all_algorithms();
/// nullptr when there is none.
const Algorithm* find_algorithm(Collective collective, std::string_view name);
/// One rank's schedule. 1 <= nranks <= 65535. O(its instructions).
RankSchedule record_rank(const Algorithm& algorithm, Rank rank, int nranks, Rank root = 0);
/// The schedule of one end of a message between two ranks (kSend, kRecv), which no table lists. peer != rank.
RankSchedule record_point_to_point(Collective send_or_recv, Rank rank, int nranks, Rank peer);
/// All ranks' schedules.
Schedule record_all(const Algorithm& algorithm, int nranks, Rank root = 0);

}  // namespace rondo
