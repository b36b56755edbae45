// Operation: one running call on one rank of host memory. Plain state that the driver steps.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "plan/call.h"
#include "plan/program.h"
#include "protocol/zero_copy.h"
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

  std::shared_ptr<const void> plan;  // keeps the programs; of a blocking call that runs alone: the driver does
  const Program* program = nullptr;
  const Program* fallback = nullptr;  // for a direct program: used if a rank's buffers cannot be reached
  const Program* planned = nullptr;   // the original program, if `program` has become the fallback
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t in_bytes = 0, out_bytes = 0;
  alignas(8) std::byte premul[8] = {};  // this rank's scale, one element of the accumulator type
  uint64_t deadline_ns = 0;             // limit of its wait
  uint64_t waiting_since_ns = 0;  // time of its first noticed wait; 0: never
  uint64_t tag = 0;

  uint64_t sequence = 0;    // 1-based, per communicator; send, recv: per peer and direction
  uint32_t call_index = 0;  // of `sequence`
  LaneState lanes[kMaxLanes];
  uint32_t lanes_left = 0;
  uint32_t looks_at_end = 0;    // checks for unread sends by address since its lanes have finished
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
  // Zero-copy sends that were not read at the last check. The operation is done when all of them are read or copied
  // into the ring. Until then their data must not be overwritten.
  struct ZeroCopy {
    const ZeroCopySend* zero_copy_send;  // nullptr: sent by address
    WritePort* port;
    uint64_t step;
    const std::byte* data;
    uint64_t bytes;
    bool is_out() const { return zero_copy_send != nullptr ? zero_copy_send->is_out(step) : !port->fifo.is_read(step); }
    bool overlaps(const std::byte* at, uint64_t n) const { return at < data + bytes && data < at + n; }
  };
  std::vector<ZeroCopy> zero_copy;
  // Posted receives at the last check. Their buffers are not sent zero-copy, because an answer may arrive before all
  // readers have read the data.
  struct Asked {
    const PostedReceive* posted_receive;
    uint64_t flag;
    const std::byte* at;
    uint64_t bytes;
  };
  std::vector<Asked> asked;
  LaneWait waits[kMaxLanes];  // for traces: how long each lane's next instruction has waited

  /// Clears the state of an earlier call. One Operation serves all blocking calls of a communicator.
  void reset() {
    waiting_since_ns = 0;
    peer_was_gone = false;
    mismatch_with = -1;
    reach_error = {};
    zero_copy.clear();
    asked.clear();
    planned = nullptr;
    done.store(false, std::memory_order_relaxed);
  }
  /// Returns the fingerprint of a step's messages.
  uint32_t fingerprint(const ProgramStep& s) const { return fingerprint_at(s.fingerprint, call_index); }
  /// Returns the shape that all ranks must agree on. It is always the planned one, because ranks start the fallback at
  /// different times.
  const OperationShape& shape() const { return (planned != nullptr ? planned : program)->operation; }
  /// Returns true if its lanes have finished and no peer reads its zero-copy sends any more.
  bool complete() {
    if (lanes_left != 0 || zero_copy.empty() || repaid()) return lanes_left == 0;
    constexpr uint32_t kMostLooks = 64;  // a late reader gets a copy, so that the caller need not wait for it
    if (++looks_at_end < kMostLooks) return false;
    bring_in();
    return zero_copy.empty();
  }
  /// Removes completed zero-copy sends. Returns true if none is left.
  bool repaid() {
    std::erase_if(zero_copy, [](const ZeroCopy& l) { return !l.is_out(); });
    return zero_copy.empty();
  }
  /// Returns true if a zero-copy send still uses some of these bytes.
  bool has_zero_copy(const std::byte* at, uint64_t bytes) {
    return !repaid() &&
           std::any_of(zero_copy.begin(), zero_copy.end(), [&](const ZeroCopy& l) { return l.overlaps(at, bytes); });
  }
  /// Copies messages that were sent by address into the rings: all of them, or those in these bytes. Does not wait for
  /// a reader.
  void bring_in(const std::byte* at = nullptr, uint64_t bytes = 0) {
    bring_in_if([&](const ZeroCopy& l) { return at == nullptr || l.overlaps(at, bytes); });
  }
  /// Copies messages that readers cannot read in place. After one refusal a port no longer sends by address.
  void bring_in_refused() {
    for (const ZeroCopy& l : zero_copy)
      if (l.zero_copy_send == nullptr && l.port->fifo.is_refused(l.step)) l.port->sends_by_address = false;
    bring_in_if([](const ZeroCopy& l) { return !l.port->sends_by_address; });
  }
  /// Returns true if a posted receive may write to some of these bytes.
  bool may_land_on(const std::byte* at, uint64_t bytes) {
    std::erase_if(asked, [](const Asked& a) { return !a.posted_receive->waits_for(a.flag); });
    return std::any_of(asked.begin(), asked.end(),
                       [&](const Asked& a) { return at < a.at + a.bytes && a.at < at + bytes; });
  }
  /// Prepares the operation to run `p` from the beginning.
  void load(const Program* p) {
    program = p;
    lanes_left = looks_at_end = 0;
    for (size_t i = 0; i < p->lanes.size(); ++i) {
      lanes[i] = {};
      if (p->num_loops != 0 && !p->lanes[i].empty()) ++lanes_left;
    }
  }

 private:
  template <class Which>
  void bring_in_if(Which which) {
    std::erase_if(zero_copy, [&](const ZeroCopy& l) {
      if (l.zero_copy_send != nullptr || !which(l)) return false;
      if (l.is_out() && !l.port->fifo.bring_in(l.step, l.data)) l.port->sends_by_address = false;
      return true;
    });
  }
};

}  // namespace rondo
