// Operation: one running call on one rank of host memory. Plain state that the driver steps.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "plan/call.h"
#include "plan/program.h"
#include "rondo/status.h"
#include "trace/step_trace.h"
#include "transport/ports.h"

namespace rondo {

struct LaneState {
  uint32_t pc = 0;
  uint64_t loop = 0;
};

struct Operation : WorkState {
  using WorkState::WorkState;
  static constexpr int kMaxLanes = 8;

  std::shared_ptr<const void> plan;  // keeps the programs; nullptr if a blocking call runs alone: the driver keeps them
  const Program* program = nullptr;
  const Program* fallback = nullptr;  // for a direct program: used if a rank's buffers cannot be reached
  const Program* planned = nullptr;   // the original program, if `program` has become the fallback
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t in_bytes = 0, out_bytes = 0;
  alignas(8) std::byte premul[8] = {};  // this rank's scale, one element of the accumulator type
  uint64_t deadline_ns = 0;             // longest wait, a duration
  uint64_t waiting_since_ns = 0;  // time of its first noticed wait; 0: never
  uint64_t tag = 0;

  uint64_t sequence = 0;    // 1-based, per communicator; send, recv: per peer and direction
  uint32_t call_index = 0;  // of `sequence`
  LaneState lanes[kMaxLanes];
  uint32_t lanes_left = 0;
  uint32_t looks_at_end = 0;    // checks for open sends since its lanes have finished
  bool waits_for_turn = false;  // earlier operations run: it must wait for their steps on shared connections
  bool started = false;
  bool announced = false;  // posted on the status page
  bool peer_was_gone = false;  // send, recv: result of the last check for losses
  Rank mismatch_with = -1;  // a peer whose message has another operation's fingerprint
  uint64_t mismatch_at = 0;  // that operation's number if it has the same shape, else far from `sequence`
  Status reach_error;        // a peer's buffer could not be read, in a direct step or within a message

  // The first step of this operation on each end of the program, in the order of program->reads and ->writes.
  std::vector<uint64_t> first_read_steps, first_write_steps;
  // Addresses of the peers' buffers, from the entry credits of direct programs.
  std::vector<RemoteAddress> peer_in, peer_out;
  std::vector<std::byte> scratch;
  LaneWait waits[kMaxLanes];  // for traces: how long each lane's next instruction has waited

  /// Clears the state of an earlier call. One Operation serves all blocking calls of a communicator.
  void reset() {
    waiting_since_ns = 0;
    peer_was_gone = false;
    mismatch_with = -1;
    reach_error = {};
    planned = nullptr;
    done.store(false, std::memory_order_relaxed);
  }
  /// Returns the fingerprint of a step's messages.
  uint32_t fingerprint(const ProgramStep& s) const { return fingerprint_at(s.fingerprint, call_index); }
  /// Returns the shape that all ranks must agree on. It is always the planned one, because ranks start the fallback at
  /// different times.
  const OperationShape& shape() const { return (planned != nullptr ? planned : program)->operation; }
  /// Prepares the operation to run `p` from the beginning.
  void load(const Program* p) {
    program = p;
    lanes_left = looks_at_end = 0;
    for (size_t i = 0; i < p->lanes.size(); ++i) {
      lanes[i] = {};
      if (p->num_loops != 0 && !p->lanes[i].empty()) ++lanes_left;
    }
  }
};

}  // namespace rondo
