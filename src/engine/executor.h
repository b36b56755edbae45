// Executor: executes the verbs. step() moves one message of one lane of one operation, if possible now.
//
// One function executes all verbs. It gathers the sources {own chunk, received messages}, reduces them if there are
// several, and stores the result in the sinks {own chunk, sends}. It never waits. The driver retries a step that is not
// ready. Thread safety: belongs to the communicator's driver.
#pragma once

#include <utility>
#include <vector>

#include "engine/operation.h"
#include "trace/flight_record.h"

namespace rondo {

/// Page-aligned memory. Vectors of the copies and kernels then do not straddle cache lines. reserve() may grow it and
/// does not keep its contents.
class PageBlock {
 public:
  void reserve(uint64_t bytes) {
    constexpr uint64_t kPageBytes = 4096;
    if (memory_.size() < bytes + kPageBytes) memory_ = std::vector<std::byte>(bytes + kPageBytes);
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = memory_.data() + ((begin + kPageBytes - 1) / kPageBytes * kPageBytes - begin);
  }
  std::byte* data() const { return start_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* start_ = nullptr;
};

class Executor {
 public:
  Executor(Rank rank, int nranks, PortTable& ports)
      : rank_(rank), ports_(ports), own_bell_(ports.transport().bell(rank)),
        sources_(static_cast<size_t>(nranks) + 1), sinks_(static_cast<size_t>(nranks) + 1) {}

  /// Returns true if a message moved. `lane` must not have finished.
  bool step(Operation& op, uint32_t lane) {
    if (trace_ != nullptr) [[unlikely]] return step_traced(op, lane);
    return step_lane(op, lane);
  }
  /// step_once executes a step of a program in `once` form, without lane bookkeeping. If is_traced(), call begin_once()
  /// before the first step, and step_once_traced for each.
  bool step_once(Operation& op, const ProgramStep& s);
  bool step_once_traced(Operation& op, const ProgramStep& s);
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
  /// If cores are oversubscribed, a waiting rank notes all missing peers, not only the first.
  void set_oversubscribed(bool oversubscribed) { oversubscribed_ = oversubscribed; }

 private:
  static constexpr uint64_t kPullBytes = 256 * 1024;  // total for all peers, so that it stays in a core's L2
  bool step_lane(Operation& op, uint32_t lane);
  bool step_traced(Operation& op, uint32_t lane);
  bool ready(Operation& op, const ProgramStep& s, uint32_t steps, uint32_t ring_bytes = 0);
  void note_missing(const Doorbell* whose);
  static void note_mismatch(Operation& op, const ProgramStep& s, const ReadPort& from);
  void look_ahead(const Operation& op, const ProgramStep& s);
  void expect_next(Operation& op, uint32_t lane);
  void offer_posted_receive(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool overwrites_zero_copy(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool my_turn(const Operation& op, const ProgramStep& s) const;
  bool move(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems, uint32_t steps);
  bool pull_zero_copy(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool pull_block(Operation& op, const ProgramStep& s, uint64_t first, uint64_t num_elems);
  enum class ZeroCopy : uint8_t { kNot, kByAddress, kToTransport };
  static ZeroCopy may_zero_copy(Operation& op, const WritePort& to, const std::byte* data, uint32_t bytes);
  void choose_ways(Operation& op, const ProgramStep& s, const std::byte* stays, uint32_t bytes);
  static void send_zero_copy(Operation& op, WritePort& to, ZeroCopy how, const std::byte* data, uint32_t bytes);
  template <class Received>
  uint32_t gather(const ProgramStep& s, const std::byte* src, Received received);
  void fill_lines(const Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems);
  void copy_lines(const ProgramStep& s, const std::byte* src, std::byte* dst, uint64_t bytes);
  void run_kernel(const Operation& op, const ProgramStep& s, uint32_t num_src, uint32_t num_dst, uint64_t num_elems,
                  bool has_dst);
  void run_mixed(const Operation& op, const ProgramStep& s, const KernelArgs& args, bool has_dst);
  bool credit(Operation& op, const ProgramStep& s);
  bool direct(Operation& op, const ProgramStep& s);
  static bool converts(const Program& p, const ProgramStep& s);
  Status direct_block(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems);
  const std::byte* mapped_source(const Operation& op, const ProgramStep& s, Rank r) const;
  std::byte* at(const Operation& op, Buffer b, uint64_t elem) const;
  bool advance(Operation& op, uint32_t lane);

  Rank rank_;
  PortTable& ports_;
  const Doorbell* own_bell_;
  const Doorbell* missing_ = nullptr;
  bool oversubscribed_ = false;
  StepTrace* trace_ = nullptr;
  WaitReason blocked_by_ = WaitReason::kNone;  // why the last step did not move
  std::vector<const void*> sources_;
  std::vector<void*> sinks_;
  PageBlock pulled_;  // blocks pulled from peers' buffers
  struct Fetched {
    std::byte* block = nullptr;  // destination of the pull; nullptr: not pulled
    uint64_t address = 0;        // of the whole message, in the writer's process
  };
  std::vector<Fetched> fetched_;                         // the current messages, by receiving port
  bool has_fetched_ = false;                             // true if any of them was pulled
  uint64_t block_elems_ = 0;                             // block size of the current messages
  std::vector<std::pair<WritePort*, ZeroCopy>> zero_copy_;  // zero-copy sends of the current message
  std::vector<std::byte*> into_ring_;                    // ring destinations of the current message
};

}  // namespace rondo
