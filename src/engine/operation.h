// Operation: one call under way on one rank. Plain state that the driver steps; owned by the caller (blocking) or by
// its WorkState (asynchronous).
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "plan/program.h"
#include "protocol/lending.h"
#include "rondo/status.h"
#include "trace/step_trace.h"
#include "transport/ports.h"

namespace rondo {

struct LaneState {
  uint32_t pc = 0;
  uint64_t loop = 0;
};

struct Operation {
  static constexpr int kMaxLanes = 8;

  const Program* program = nullptr;
  const Program* fallback = nullptr;  // of a direct program: when a rank's buffers cannot be reached
  const Program* planned = nullptr;   // what it began with; `program` may have become the fallback since
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t in_bytes = 0, out_bytes = 0;
  alignas(8) std::byte premul[8] = {};  // this rank's scale, one element of the accumulator type
  uint64_t deadline_ns = 0;    // how long it may take from its first wait on
  uint64_t waiting_since_ns = 0;  // first time that a wait for it was noticed; 0: never
  uint64_t tag = 0;

  uint64_t sequence = 0;    // 1-based, per communicator; send, recv: per peer and direction
  uint32_t call_index = 0;  // of `sequence`
  LaneState lanes[kMaxLanes];
  uint32_t lanes_left = 0;
  uint32_t looks_at_end = 0;    // its lanes have finished, and not all that it has lent by address is read
  bool waits_for_turn = false;  // earlier operations are under way: it takes turns on their connections
  bool started = false;
  bool announced = false;  // it stands on the board
  bool peer_was_gone = false;  // send, recv: when the last look for losses was taken
  Rank mismatch_with = -1;  // a peer whose message carries another operation's fingerprint
  uint64_t mismatch_at = 0;  // the number of that operation if it has the same shape, else far from `sequence`
  Status reach_error;       // a peer's buffer could not be read: in a direct step, or in the middle of a message
  std::atomic<bool> done{false};
  Status status;  // valid when done

  // First step of this operation on each of the program's ends, in the order of program->reads and ->writes.
  std::vector<uint64_t> first_read_steps, first_write_steps;
  // Where the peers' buffers stand; filled by entry credits of direct programs.
  std::vector<RemoteAddress> peer_in, peer_out;
  std::vector<std::byte> scratch;
  // What it has lent, at the last look: it is not done before all of it has come back, or was brought in, and
  // overwrites none of it before.
  struct Lent {
    const Loan* loan;  // nullptr: by its address
    WritePort* port;
    uint64_t step;
    const std::byte* data;
    uint64_t bytes;
    bool is_out() const { return loan != nullptr ? loan->is_out(step) : !port->fifo.is_read(step); }
    bool overlaps(const std::byte* at, uint64_t n) const { return at < data + bytes && data < at + n; }
  };
  std::vector<Lent> lent;
  // Where messages may land, at the last look: it lends none of it, as a reader's answer may land while others read.
  struct Asked {
    const Landing* landing;
    uint64_t flag;
    const std::byte* at;
    uint64_t bytes;
  };
  std::vector<Asked> asked;
  LaneWait waits[kMaxLanes];  // while the communicator is traced: how long each lane's next instruction has waited

  /// Forgets an earlier use, so that one Operation serves all blocking calls of a communicator.
  void reset() {
    waiting_since_ns = 0;
    peer_was_gone = false;
    mismatch_with = -1;
    reach_error = {};
    lent.clear();
    asked.clear();
    planned = nullptr;
    done.store(false, std::memory_order_relaxed);
  }
  /// Of the messages of a step.
  uint32_t fingerprint(const ProgramStep& s) const { return fingerprint_at(s.fingerprint, call_index); }
  /// What all ranks must agree on. Ranks fall back at different times, so it stays what was planned.
  const OperationShape& shape() const { return (planned != nullptr ? planned : program)->operation; }
  /// True when its lanes have finished and nobody reads what it has lent.
  bool complete() {
    if (lanes_left != 0 || lent.empty() || repaid()) return lanes_left == 0;
    constexpr uint32_t kMostLooks = 64;  // a reader that is late gets a copy: the caller is not kept for it
    if (++looks_at_end < kMostLooks) return false;
    bring_in();
    return lent.empty();
  }
  /// Forgets what has come back. True when that was all.
  bool repaid() {
    std::erase_if(lent, [](const Lent& l) { return !l.is_out(); });
    return lent.empty();
  }
  /// True when it has lent some of these bytes.
  bool has_lent(const std::byte* at, uint64_t bytes) {
    return !repaid() && std::any_of(lent.begin(), lent.end(), [&](const Lent& l) { return l.overlaps(at, bytes); });
  }
  /// What was lent by its address, all of it or of these bytes, goes into the rings: nobody has to be waited for.
  void bring_in(const std::byte* at = nullptr, uint64_t bytes = 0) {
    bring_in_if([&](const Lent& l) { return at == nullptr || l.overlaps(at, bytes); });
  }
  /// So does what readers cannot read where it lies. Whose readers have refused once, is not lent by from then on.
  void bring_in_refused() {
    for (const Lent& l : lent)
      if (l.loan == nullptr && l.port->fifo.is_refused(l.step)) l.port->lends_by_address = false;
    bring_in_if([](const Lent& l) { return !l.port->lends_by_address; });
  }
  /// True when a message may land on some of these bytes.
  bool may_land_on(const std::byte* at, uint64_t bytes) {
    std::erase_if(asked, [](const Asked& a) { return !a.landing->waits_for(a.flag); });
    return std::any_of(asked.begin(), asked.end(),
                       [&](const Asked& a) { return at < a.at + a.bytes && a.at < at + bytes; });
  }
  /// Makes it ready to run `p` from the beginning.
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
    std::erase_if(lent, [&](const Lent& l) {
      if (l.loan != nullptr || !which(l)) return false;
      if (l.is_out() && !l.port->fifo.bring_in(l.step, l.data)) l.port->lends_by_address = false;
      return true;
    });
  }
};

}  // namespace rondo
