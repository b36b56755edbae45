// Computes the order in which the stream engine issues a rank's instructions. All lanes share one order, because a rank
// has one stream.
//
// If ranks issued one lane after the other, they could deadlock. Therefore all ranks simulate the schedule of all
// ranks, with connections of kStreamSlots messages. Each rank issues its own instructions in the simulated order. The
// simulation shows that no rank waits for a later instruction. An instruction runs for as many loops in a row as the
// slots permit, so that streams seldom wait for one another: processes that share a device take turns on it. Messages
// whose sizes only their ends know (all_to_all_v, send and recv) need no simulation: they go by distance, sends first.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/p2p/layout.h"
#include "plan/call.h"
#include "plan/program.h"
#include "rondo/status.h"

namespace rondo {

struct StreamStep {
  uint16_t lane, pc;
  uint64_t loop;
  friend bool operator==(const StreamStep&, const StreamStep&) = default;
};

/// The programs of all ranks of one call.
struct AllPrograms {
  std::vector<std::unique_ptr<PortTable>> ports;
  std::vector<std::unique_ptr<Program>> programs;  // by rank
};
/// transport: makes no memory for its connections, because no message moves. shape.counts: of any one rank, not
/// pairwise. The counts of the other ranks follow from it.
Expected<AllPrograms> compile_all(const Algorithm& algorithm, const HostLayout& hosts, Rank root,
                                  const ProgramShape& shape, Transport& transport, const KernelTable& kernels);

/// Simulates the programs of a call, by rank. Errors: kInternal (no instruction can run: a deadlock with so few slots).
/// O(instructions of all ranks x loops).
Expected<std::vector<std::vector<StreamStep>>> play_through(const std::vector<std::unique_ptr<Program>>& programs);
/// The order for a program whose messages all go straight from an input to an output.
std::vector<StreamStep> order_by_distance(const Program& program);

}  // namespace rondo
