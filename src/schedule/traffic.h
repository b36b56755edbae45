// Traffic: chunks that each rank sends, receives and delivers in one schedule, as numbers and as text.
//
// Counted at the ends: a message to three ranks counts three times for its sender and once for each receiver. (A row's
// Cost counts a multicast once: rondo/algorithm.h.) A direct read from or write to a peer's buffer counts as a message.
// Thread safety: pure functions. O(instructions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/schedule.h"

namespace rondo {

struct Traffic {
  int64_t sent_chunks = 0;
  int64_t received_chunks = 0;
  int64_t delivered_chunks = 0;  // of the result, in the rank's output
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// By rank.
std::vector<Traffic> traffic_of(const Schedule& schedule);
/// "7/4": chunks as a fraction of the whole vector.
std::string part_text(int64_t chunks, int64_t total_chunks);
/// Explains the columns of traffic_table, one line each.
std::string traffic_legend();
/// One row for all ranks with the same figures, at most fold_at rows (0: all).
std::string traffic_table(const Schedule& schedule, int fold_at);

}  // namespace rondo
