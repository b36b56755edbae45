// Traffic: what each rank sends, receives and delivers in one schedule, in chunks and in words.
//
// Counted at the ends: a message to three ranks counts three times for its sender and once for each receiver. (A row's
// Cost counts what a rank writes, a multicast once: rondo/algorithm.h.) What a direct instruction reads from or writes
// into a peer's buffer counts like a message. Thread safety: pure functions. O(instructions).
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

/// Of each rank.
std::vector<Traffic> traffic_of(const Schedule& schedule);
/// "7/4": so many of the chunks that the whole vector is cut into.
std::string part_text(int64_t chunks, int64_t total_chunks);
/// What the columns of traffic_table mean, one line each.
std::string traffic_legend();
/// One row for all ranks that have the same figures, at most fold_at rows (0: all).
std::string traffic_table(const Schedule& schedule, int fold_at);

}  // namespace rondo
