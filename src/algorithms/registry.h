// The registry: one row for each (algorithm, collective). The planner, the checker, the conformance tests, the
// benchmarks and the documentation find algorithms only here.
//
// To add an algorithm to the library, write its header (definition and cost) and add its rows to the table in
// registry.cc. Other programs call register_algorithm (rondo/algorithm.h, src/schedule/own_algorithms.cc), which proves
// the row and adds it.
//
// Global state of the process: rows are appended until the first communicator is made, and never moved or removed.
// Thread safety: readers at any time, writers one after the other.
#pragma once

#include <span>
#include <string>

#include "rondo/algorithm.h"
#include "rondo/recorder.h"
#include "rondo/schedule.h"
#include "rondo/status.h"

namespace rondo {

/// One rank's schedule on these hosts (an int: that many ranks on one host). 1 to 65535 ranks. O(its instructions).
/// Errors: kInvalidArgument, the first error in the definition.
Expected<RankSchedule> try_record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The same for a definition of the library or a proven one.
RankSchedule record_rank(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The source line of each of its instructions, for messages.
TextLines record_lines(const Algorithm& algorithm, Rank rank, const HostLayout& hosts, Rank root = 0);
/// The schedule of one end of a message between two ranks (kSend, kRecv), which has no row. `matched`: the message
/// matches by its tag. Its sender first sends a credit, the envelope, which the receiver reads before it makes the
/// schedule. A receive from any rank (peer -1) is empty.
RankSchedule record_point_to_point(Collective send_or_recv, Rank rank, int nranks, Rank peer, bool matched = false);
/// All ranks' schedules.
Schedule record_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);
/// The same for an unproven definition: each rank's part ends before its first error.
struct UnprovenSchedule {
  Schedule schedule;
  std::string error;  // of the first rank with an error; empty: none
  Rank rank = -1;     // that rank, and the place of its next instruction
  int lane = -1, pc = -1;
};
UnprovenSchedule record_unproven(const Algorithm& algorithm, const HostLayout& hosts, Rank root = 0);

/// True if several hosts change the schedule.
inline bool depends_on_hosts(const Algorithm& row) { return row.record_on_hosts != nullptr; }
/// The stated cost on these hosts.
Cost cost_of(const Algorithm& algorithm, const HostLayout& hosts);

/// The row's index in all_algorithms().
inline uint8_t algorithm_index(const Algorithm& row) { return static_cast<uint8_t>(&row - all_algorithms().data()); }

/// Checks a row without recording it. Errors: kInvalidArgument.
Status check_row(const Algorithm& row);
/// Checks that a row could be appended now. Errors: kInvalidArgument (the name exists; frozen; full).
Status check_new(const Algorithm& row);
/// Appends a row. Errors: kInvalidArgument (check_row; check_new).
Status add_row(const Algorithm& row);
/// The rows added by register_algorithm.
std::span<const Algorithm> own_algorithms();
/// Refuses new rows from now on. Returns the names of the added algorithms and a hash of their schedules for a few
/// ranks, which must be equal on all ranks; empty if there are none.
std::string freeze_registry();

}  // namespace rondo
