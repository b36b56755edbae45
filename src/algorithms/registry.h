// The registry: one row for each (algorithm, collective). The planner, the checker, the conformance tests, the
// benchmarks and the documentation find algorithms here and nowhere else.
//
// Adding an algorithm to the library: write its header, add its rows to the table in registry.cc. Nothing else.
// From outside: register_algorithm (rondo/algorithm.h, src/schedule/own_algorithms.cc), which proves the row and adds it.
//
// The one state that a process has as a whole: rows are appended until the first communicator is made, and never move
// or go. Thread safety: readers at any time, writers one after the other.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rondo/algorithm.h"
#include "rondo/recorder.h"
#include "rondo/schedule.h"
#include "rondo/status.h"

namespace rondo {

/// One rank's schedule, ranks standing on such hosts (a number of ranks: all on one). 1 to 65535 ranks. O(its
/// instructions). Errors: kInvalidArgument, the text's first wrong statement.
Expected<RankSchedule> try_record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The same of a text that is known to be right: of the library, or proven.
RankSchedule record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The line in which each of its instructions stands, for messages.
TextLines record_lines(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The schedule of one end of a message between two ranks (kSend, kRecv), which no table lists. peer != rank.
RankSchedule record_point_to_point(Collective send_or_recv, Rank rank, int nranks, Rank peer);
/// All ranks' schedules.
Schedule record_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);
/// The same of a text that nobody has proven: each rank's part ends before its first wrong statement.
struct UnprovenSchedule {
  Schedule schedule;
  std::string error;  // of the first rank that has one; empty: none
  Rank rank = -1;     // that rank, and where its next instruction would have stood
  int lane = -1, pc = -1;
};
UnprovenSchedule record_unproven(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);

/// Whether several hosts change what is recorded.
inline bool depends_on_hosts(const Algorithm& row) { return row.record_on_hosts != nullptr; }
/// What the row states for ranks on such hosts.
Cost cost_of(const Algorithm& algorithm, const HostLayout& hosts);

/// The row's place in all_algorithms().
inline uint8_t algorithm_index(const Algorithm& row) { return static_cast<uint8_t>(&row - all_algorithms().data()); }

/// What can be said of a row without its text. Errors: kInvalidArgument.
Status check_row(const Algorithm& row);
/// Whether it could be appended now. Errors: kInvalidArgument (the name exists; frozen; full).
Status check_new(const Algorithm& row);
/// Appends a row. Errors: kInvalidArgument (check_row; check_new).
Status add_row(const Algorithm& row);
/// The rows that are not the library's own.
std::span<const Algorithm> own_algorithms();
/// From now on no row can be added. Returns what ranks that work together must have in common: the names of the own
/// algorithms and a hash of their schedules for a few ranks; empty when there are none.
std::string freeze_registry();

}  // namespace rondo
