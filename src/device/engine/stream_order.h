// The order in which the stream engine issues a rank's instructions: one row for all lanes, since a rank has one
// stream.
//
// Run one after the other, lanes could wait for each other across ranks for ever. So all ranks play the schedule of all
// ranks through, in rounds, with connections of kStreamSlots messages, and each issues its own instructions in the
// order in which they came: that they came in this order on all ranks shows that no rank waits for what comes later.
// Messages whose sizes only their two ends know (all_to_all_v, send and recv) need no such play: they go by distance,
// sends first.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/program.h"
#include "plan/request.h"
#include "rondo/status.h"

namespace rondo {

inline constexpr uint32_t kStreamSlots = 8;

struct StreamStep {
  uint16_t lane, pc;
  uint64_t loop;
  friend bool operator==(const StreamStep&, const StreamStep&) = default;
};

/// The programs of all ranks of one call, over connections without memory.
struct AllPrograms {
  std::unique_ptr<Transport> nowhere;
  std::vector<std::unique_ptr<PortTable>> ports;
  std::vector<std::unique_ptr<Program>> programs;  // by rank
};
/// shape.counts: of any one rank, not pairwise: of the others only the part that they hold alone differs.
Expected<AllPrograms> compile_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root,
                                  const ProgramShape& shape, const KernelTable& kernels);

/// What plays: each rank's program of the same call, by rank. Errors: kInternal (nothing can move: a deadlock with so
/// few slots). O(instructions of all ranks x loops).
Expected<std::vector<std::vector<StreamStep>>> play_through(const std::vector<std::unique_ptr<Program>>& programs);
/// The order of a rank's program each of whose messages goes straight from an input to an output.
std::vector<StreamStep> order_by_distance(const Program& program);

}  // namespace rondo
