// Executor: executes the verbs. step() moves one message of one lane of one operation, if possible now.
//
// One function executes all verbs. It gathers the sources {own chunk, received messages}, reduces them if there are
// several, and stores the result in the sinks {own chunk, sends}. It never waits. The driver retries a step that is not
// ready. Thread safety: belongs to the communicator's driver.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "plan/call.h"
#include "plan/program.h"
#include "rondo/status.h"
#include "trace/flight_record.h"
#include "trace/step_trace.h"
#include "transport/ports.h"

namespace rondo {

struct LaneState {
  uint32_t pc = 0;
  uint64_t loop = 0;
};

/// One running call on one rank of host memory. Plain state that the driver steps.
struct Operation : WorkState {
  using WorkState::WorkState;
  static constexpr int kMaxLanes = 8;

  std::shared_ptr<const void> plan;  // keeps the programs; nullptr if a blocking call runs alone: the driver keeps them
  const Program* program = nullptr;
  const Program* fallback = nullptr;  // for a direct program: used if a rank's buffers cannot be reached
  const Program* planned = nullptr;   // the program at the start; nullptr in the `once` form
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t in_bytes = 0, out_bytes = 0;
  alignas(8) std::byte premul[8] = {};  // this rank's scale, one element of the accumulator type
  uint64_t deadline_ns = 0;             // longest time from the first noticed wait to the end
  uint64_t waiting_since_ns = 0;        // time of its first noticed wait; 0: never
  uint64_t tag = 0;
  Rank* source = nullptr;  // recv of a matched message: gets the sender's rank

  uint64_t sequence = 0;    // 1-based, per communicator; send, recv: per peer and direction; 0: not matched so far
  uint32_t call_index = 0;  // of `sequence`
  LaneState lanes[kMaxLanes];
  uint32_t lanes_left = 0;
  uint32_t looks_at_end = 0;    // checks for open sends since its lanes have finished
  bool waits_for_turn = false;  // earlier operations run: it must wait for their steps on shared connections
  bool started = false;
  bool announced = false;      // posted on the status page
  bool peer_was_gone = false;  // send, recv: result of the last check for losses
  Rank mismatch_with = -1;     // a peer whose message has another operation's fingerprint
  uint64_t mismatch_at = 0;    // that operation's number if it has the same shape, else far from `sequence`
  Status reach_error;          // a peer's buffer could not be read, in a direct step or within a message

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

class Executor {
 public:
  Executor(Rank rank, int nranks, PortTable& ports)
      : rank_(rank), ports_(ports), own_bell_(ports.transport().bell(rank)),
        sources_(static_cast<size_t>(nranks) + 1), sinks_(static_cast<size_t>(nranks) + 1) {}

  /// Returns true if the lane advanced: it moved a message, or finished a step that has none. `lane` must not have
  /// finished.
  bool step(Operation& op, uint32_t lane) {
    if (trace_ != nullptr) [[unlikely]] return step_traced(op, lane);
    return step_lane(op, lane);
  }
  /// step_once executes a step of a program in `once` form, without lane bookkeeping. If is_traced(), call begin_once()
  /// before the first step, and step_once_traced for each.
  bool step_once(Operation& op, const OnceStep& step);
  bool step_once_traced(Operation& op, const OnceStep& step);
  void begin_once() { trace_->begin_operation(); }
  bool is_traced() const { return trace_ != nullptr; }
  /// Records every following instruction in `trace`; nullptr ends this. The caller owns the trace.
  void set_trace(StepTrace* trace) { trace_ = trace; }
  /// Returns the state of a lane of a running operation, and the reason why it waits.
  FlightLane look_at(const Operation& op, uint32_t lane) const;
  /// Returns the bell of a peer that a step has waited for since forget_missing(), preferably of a peer on this core.
  /// nullptr if unknown.
  const Doorbell* missing() const { return missing_; }
  void forget_missing() { missing_ = nullptr; }
  /// If cores are oversubscribed, a waiting rank also notes the missing peers of the lane's next receives.
  void set_oversubscribed(bool oversubscribed) { oversubscribed_ = oversubscribed; }

 private:
  /// A received operand of a step: a message, or the range of a peer's buffer that a direct step reads.
  struct Source {
    const std::byte* at;  // in the ring, in its destination, or mapped. nullptr: pull it from the peer
    Rank peer = -1;
    RemoteAddress address = {};         // in the peer's memory
    const ReadPort* message = nullptr;  // its line has the address until the writer copies the data into the ring
    uint32_t message_bytes = 0;
  };
  /// Elements of a step's own operands.
  struct Part {
    const std::byte* src;  // of the whole step; nullptr: none
    std::byte* dst;
    uint64_t first_elem, num_elems;
  };
  bool step_lane(Operation& op, uint32_t lane);
  bool step_traced(Operation& op, uint32_t lane);
  bool blocked(WaitReason reason) {
    blocked_by_ = reason;
    return false;
  }
  bool ready(Operation& op, const ProgramStep& s, uint32_t steps, uint32_t ring_bytes = 0);
  bool has_space(const ProgramStep& s, uint32_t steps, uint32_t ring_bytes, uint32_t lap_bytes);
  void note_missing(const Doorbell* whose);
  static void note_mismatch(Operation& op, const ProgramStep& s, const ReadPort& from);
  void look_ahead(const Operation& op, const ProgramStep& s);
  void expect_next(Operation& op, uint32_t lane);
  void post_receive(Operation& op, const ProgramStep& s, const Window& w);
  bool my_turn(const Operation& op, const ProgramStep& s) const;
  bool move(Operation& op, const ProgramStep& s, const Window& w);
  bool may_overwrite(const std::byte* at, uint64_t bytes);
  bool find_messages(Operation& op, const ProgramStep& s, uint32_t bytes);
  bool combine(Operation& op, const ProgramStep& s, uint64_t num_elems, const std::byte* src, std::byte* dst);
  template <class Received>
  void combine_part(const Operation& op, const ProgramStep& s, const Part& part, Received received);
  bool pull(Operation& op, Source& from, uint64_t first_byte, uint64_t bytes, std::byte* to);
  bool wait_for_ring(const ReadPort& r);
  template <class Received>
  uint32_t gather(const ProgramStep& s, const std::byte* src, Received received);
  void fill_lines(const Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems);
  void copy_lines(const ProgramStep& s, const std::byte* src, std::byte* dst, uint64_t bytes);
  void run_kernel(const Operation& op, const ProgramStep& s, uint32_t num_src, uint32_t num_dst, uint64_t num_elems,
                  bool has_dst);
  void run_mixed(const Operation& op, const ProgramStep& s, const KernelArgs& args, bool has_dst);
  bool credit(Operation& op, const ProgramStep& s);
  bool direct(Operation& op, const ProgramStep& s);
  std::byte* at(const Operation& op, Buffer b, uint64_t elem) const;
  /// Returns the step's own operand and its destination in a buffer, from `skip` elements on; nullptr if it has none.
  const std::byte* own_source(const Operation& op, const ProgramStep& s, uint64_t skip) const {
    return s.has(kVerbSrc) ? at(op, s.src_buffer, s.src.first_elem + skip) : nullptr;
  }
  std::byte* own_sink(const Operation& op, const ProgramStep& s, uint64_t skip) const {
    return s.has(kVerbDst) ? at(op, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
  }
  bool advance(Operation& op, uint32_t lane);

  Rank rank_;
  PortTable& ports_;
  const Doorbell* own_bell_;
  const Doorbell* missing_ = nullptr;
  bool oversubscribed_ = false;
  StepTrace* trace_ = nullptr;
  WaitReason blocked_by_ = WaitReason::kNone;  // why the last step did not move
  // The operands of the current step.
  std::vector<Source> received_;      // by receiving port or peer
  std::vector<std::byte*> into_;      // its messages in the rings, and the peers' buffers of a direct step
  std::vector<const void*> sources_;  // of the kernel, in the order of addition
  std::vector<void*> sinks_;
  struct alignas(64) InlineData {
    std::byte bytes[kMaxInlineBytes];
  };
  std::vector<InlineData> lines_;  // data of the received Inline messages, and of the message to send
  struct alignas(4096) Page {  // vectors of copies and kernels do not straddle cache lines in it
    std::byte bytes[4096];
  };
  std::vector<Page> pulled_;  // blocks pulled from peers' buffers
};

}  // namespace rondo
