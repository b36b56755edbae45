// StepTrace: the full trace of one rank's communicator, a ring of StepRecords and their plans.
//
// There is one ring per driver role, not per thread. A thread must hold the driver role (engine/queue.h) to execute
// instructions of a communicator. Therefore there is one writer at a time, a communicator's records are in order, and
// temporary threads need no ring. The path of an instruction has no lock and no allocation; a plan is described once,
// at its first use. A full ring overwrites the oldest records; their number is counted and reported.
//
// Thread safety: belongs to the communicator's driver, except for the caller's spans.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rondo/status.h"
#include "rondo/trace.h"
#include "trace/clock.h"
#include "trace/step_record.h"

namespace rondo {

/// The identity of a trace.
struct TraceIdentity {
  uint64_t communicator = 0;  // equal on all its ranks
  int32_t rank = 0;
  int32_t nranks = 0;
};

/// The waiting time of one lane's instruction, by reason. Reset when the instruction is executed.
struct LaneWait {
  uint64_t begin_ticks = 0, since_ticks = 0;
  uint64_t waited_ticks[kNumWaitReasons] = {};
  WaitReason reason = WaitReason::kNone;

  /// It was tried at `now` and was not ready.
  void blocked(WaitReason why, uint64_t now) {
    if (why == reason) [[likely]] return;
    if (reason == WaitReason::kNone) begin_ticks = now;
    else waited_ticks[static_cast<int>(reason)] += now - since_ticks;
    since_ticks = now;
    reason = why;
  }
};

class StepTrace {
 public:
  static constexpr uint64_t kDefaultRecords = 1 << 16;  // 4 MiB
  static constexpr uint64_t kMinRecords = 1 << 6, kMaxRecords = 1 << 26;
  static constexpr uint32_t kMaxPlans = 65535;
  static constexpr size_t kMaxSpans = 65536;

  /// Makes a trace with space for `num_records` records, rounded up to a power of two. The memory is resident from the
  /// start. Errors: kInvalidArgument (not from kMinRecords to kMaxRecords), kSystem (no memory).
  static Expected<std::unique_ptr<StepTrace>> create(const TraceIdentity& identity, uint64_t num_records);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Returns a number that distinguishes traces: a program's number from an earlier trace is not valid in this one.
  uint64_t serial() const { return serial_; }
  /// Adds a plan and returns its number. All plans beyond the limit share the last number.
  uint16_t add_plan(TracedPlan plan);

  /// Returns the place of the next record. If the ring is full, it is the place of the oldest record.
  StepRecord& next() {
    // Stores become visible in order: fetching the record's line late would delay the next message.
    __builtin_prefetch(&records_[(num_written_ + kRecordsAhead) & mask_], 1);
    return records_[num_written_++ & mask_];
  }
  /// Writes the record of an instruction that was ready at `ready_ticks` and has just been done; `what` has everything
  /// but kind and times. Resets the wait. All fields are set at once: single stores to fields of one word would wait
  /// for each other.
  void add(const StepRecord& what, LaneWait& wait, uint64_t ready_ticks, uint64_t done_ticks) {
    uint64_t begin_ticks = ready_ticks, data_ticks = 0, room_ticks = 0, order_ticks = 0;
    if (wait.reason != WaitReason::kNone) {
      wait.waited_ticks[static_cast<int>(wait.reason)] += ready_ticks - wait.since_ticks;
      begin_ticks = wait.begin_ticks;
      data_ticks = wait.waited_ticks[static_cast<int>(WaitReason::kData)];
      room_ticks = wait.waited_ticks[static_cast<int>(WaitReason::kRoom)];
      order_ticks = wait.waited_ticks[static_cast<int>(WaitReason::kOrder)];
      wait = {};
    }
    next() = {.sequence = what.sequence,
              .plan = what.plan,
              .kind = static_cast<uint64_t>(RecordKind::kStep),
              .begin_ticks = begin_ticks,
              .wait_data_ticks = data_ticks,
              .lane = what.lane,
              .wait_room_ticks = room_ticks,
              .pc = what.pc,
              .wait_order_ticks = order_ticks,
              .channel = what.channel,
              .work_ticks = done_ticks - ready_ticks,
              .bytes_high = what.bytes_high,
              .bytes_low = what.bytes_low,
              .loop = what.loop,
              .recv_step = what.recv_step,
              .send_step = what.send_step};
    last_ticks_ = done_ticks;
  }
  /// Returns the end of the operation's latest instruction; 0 if none has ended since the operation began. A driver
  /// that does not pause uses it as the beginning of the next instruction.
  uint64_t last_ticks() const { return last_ticks_; }
  void begin_operation() { last_ticks_ = 0; }

  /// Adds a caller's span. Any thread may call it.
  void add_span(TraceSpan span);

  uint64_t num_written() const { return num_written_; }
  uint64_t capacity() const { return mask_ + 1; }
  uint64_t num_lost() const { return num_written_ > capacity() ? num_written_ - capacity() : 0; }
  const TraceIdentity& identity() const { return identity_; }
  /// Gives the communicator its number, which may be unknown when the trace starts.
  void name(uint64_t communicator) { identity_.communicator = communicator; }

  /// Writes everything so far to `path`, through a temporary file next to it; recording may continue. `why`: the error
  /// that caused the dump, else empty. Errors: kSystem with the path and the errno's text. O(records).
  Status write(const std::string& path, std::string_view why) const;

 private:
  static constexpr uint64_t kRecordsAhead = 4;
  StepTrace(const TraceIdentity& identity, StepRecord* records, uint64_t capacity);
  StepRecord* records_;
  uint64_t mask_;
  uint64_t num_written_ = 0;
  uint64_t last_ticks_ = 0;
  TraceIdentity identity_;
  uint64_t serial_;
  ClockPair start_;
  std::vector<TracedPlan> plans_;
  mutable std::mutex spans_mutex_;
  std::deque<TraceSpan> spans_;  // the newest
  uint64_t spans_lost_ = 0;
};

/// Returns the path of a trace of this communicator: `directory`/rank-R-comm-C.rtrace. `session` numbers the traces of
/// one communicator from 0. From the second trace on, the path has .S before the ending; S is `session` + 1.
std::string trace_path(const std::string& directory, const TraceIdentity& identity, uint32_t session);

}  // namespace rondo
