// Second half of the checker: executes a Program on symbolic values.
//
// One thread steps all lanes of all ranks; a lane runs until it needs a message or space for one. Loop l of an
// operation moves windows l * slices .. (l + 1) * slices - 1 of every chunk, one instruction after the other. Each
// chunk of its range and each window is one message. Internal to the checker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/check_program.h"

namespace rondo::check {

struct RunOptions {
  int loops = 1;
  int slices = 1;  // messages per chunk
  int depth = 1;   // capacity of a FIFO in messages
  bool races = false;
  bool rank_order = false;   // every sum must be formed in ascending rank order
  bool fingerprint = false;  // compute it for the traffic
  // Not ragged: every window of every chunk has one element. Ragged: a part has count_elems elements (the call's
  // count), cut by extent() with windows of loop_elems. Variable counts: part j has part_elems[j]; in all_to_all rank r
  // sends part_elems[r * nranks + j] to rank j.
  bool ragged = false;
  uint64_t count_elems = 0;
  std::span<const uint64_t> part_elems;
  uint64_t loop_elems = 1;
};

struct Outcome {
  std::optional<Failure> failure;
  int64_t steps = 0;
  int64_t sent_elems = 0;  // by the busiest rank
  int64_t crossings = 0;   // messages between hosts on the chain with most of them
  int64_t host_sent_elems = 0;  // to other hosts, by the busiest host
  uint64_t order_fingerprint = 0;
  uint64_t traffic_fingerprint = 0;
};

Outcome execute(const Program& program, const RunOptions& options);

}  // namespace rondo::check
