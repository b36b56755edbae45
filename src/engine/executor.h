// Executor: the verbs. step() moves one message of one lane of one operation, if it can be moved now.
//
// The one body for all verbs: gather the sources {own chunk, received messages}, reduce when there are several, scatter
// to the sinks {own chunk, sends}. It never waits: what is not ready is tried again by the driver.
//
// Thread safety: belongs to the communicator's driver.
#pragma once

#include <utility>
#include <vector>

#include "engine/operation.h"
#include "trace/flight_record.h"

namespace rondo {

/// Memory that begins at a page, so that neither the system's copies nor the kernels straddle cache lines in it. It
/// grows when asked for more, and forgets what it held.
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

  /// True when something moved. `lane` must not have finished.
  bool step(Operation& op, uint32_t lane) {
    if (trace_ != nullptr) [[unlikely]] return step_traced(op, lane);
    return step_lane(op, lane);
  }
  /// The same for a step of a program in `once` form, without lane bookkeeping; begin_once() before its first one.
  void begin_once() {
    if (trace_ != nullptr) [[unlikely]] trace_->begin_operation();
  }
  bool step_once(Operation& op, const ProgramStep& s) {
    if (trace_ != nullptr) [[unlikely]] return step_once_traced(op, s);
    return step_message(op, s);
  }
  /// Writes down every instruction from now on; nullptr: none any more. The trace stays the caller's.
  void set_trace(StepTrace* trace) { trace_ = trace; }
  /// Where a lane of an operation under way stands, and what it waits for.
  FlightLane look_at(const Operation& op, uint32_t lane) const;
  /// Who is waited for since forget_missing(), preferably somebody on this core; nullptr when unknown.
  const Doorbell* missing() const { return missing_; }
  void forget_missing() { missing_ = nullptr; }
  /// Ranks share cores: whoever waits wants to know of all that is missing, not of the first alone.
  void set_crowded(bool crowded) { crowded_ = crowded; }

 private:
  static constexpr uint64_t kPullBytes = 256 * 1024;  // of all peers together: stays in a core's L2
  bool step_lane(Operation& op, uint32_t lane);
  bool step_message(Operation& op, const ProgramStep& s);
  bool step_traced(Operation& op, uint32_t lane);
  bool step_once_traced(Operation& op, const ProgramStep& s);
  bool ready(Operation& op, const ProgramStep& s, uint32_t steps, uint32_t ring_bytes = 0);
  void note_missing(const Doorbell* whose);
  static void note_mismatch(Operation& op, const ProgramStep& s, const ReadPort& from);
  void look_ahead(const Operation& op, const ProgramStep& s);
  void expect_next(Operation& op, uint32_t lane);
  void offer_landing(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool overwrites_lent(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool my_turn(const Operation& op, const ProgramStep& s) const;
  bool move(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems, uint32_t steps);
  bool pull_lent(Operation& op, const ProgramStep& s, uint64_t first_elem, uint64_t num_elems);
  bool pull_block(Operation& op, const ProgramStep& s, uint64_t first, uint64_t num_elems);
  enum class Lending : uint8_t { kNot, kByAddress, kToTransport };
  static Lending may_lend(Operation& op, const WritePort& to, const std::byte* data, uint32_t bytes);
  static void lend(Operation& op, WritePort& to, Lending how, const std::byte* data, uint32_t bytes);
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
  bool crowded_ = false;
  StepTrace* trace_ = nullptr;
  WaitReason blocked_by_ = WaitReason::kNone;  // why the last try was in vain
  std::vector<const void*> sources_;
  std::vector<void*> sinks_;
  PageBlock pulled_;  // blocks of peers' buffers, read by copy
  struct Fetched {
    std::byte* block = nullptr;  // where it was pulled to; nullptr: it was not
    uint64_t address = 0;        // of the whole message, in its writer's process
  };
  std::vector<Fetched> fetched_;                         // the messages at hand, by receiving port
  bool has_fetched_ = false;                             // any of them
  uint64_t block_elems_ = 0;                             // of them at once
  std::vector<std::pair<WritePort*, Lending>> lending_;  // the message at hand, once it stands in its buffer
  std::vector<std::byte*> into_ring_;                    // where the message at hand is written to be sent
};

}  // namespace rondo
