// StepTrace: the full trace of one rank's communicator, a ring of StepRecords and the plans that they refer to.
//
// There is one ring for each driver role and not for each thread: whoever executes instructions of a communicator holds
// its driver role (engine/queue.h), so there is one writer at a time however many threads take turns, a communicator's
// records stand in the order in which they happened, and a thread that comes and goes needs no ring. On the path of an
// instruction there is no lock and no allocation; a plan is described once, at its first use. When the ring is full the
// oldest records are overwritten, and how many is counted and reported.
//
// Thread safety: belongs to the communicator's driver, but for the caller's spans.
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

/// Whose trace it is.
struct TraceIdentity {
  uint64_t communicator = 0;  // the same on all its ranks
  int32_t rank = 0;
  int32_t nranks = 0;
};

/// How long one instruction of one lane has been waiting, and for what. Reset when the instruction is executed.
struct LaneWait {
  uint64_t begin_ticks = 0, since_ticks = 0;
  uint64_t waited_ticks[kNumWaitReasons] = {};
  WaitReason reason = WaitReason::kNone;

  /// It was tried at `now` and not ready.
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

  /// Room for `num_records` records, rounded up to a power of two and made resident at once. Errors: kInvalidArgument
  /// (not from kMinRecords to kMaxRecords), kSystem (no memory).
  static Expected<std::unique_ptr<StepTrace>> create(const TraceIdentity& identity, uint64_t num_records);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Tells traces apart, so that a number given out by an earlier one is not taken for ours.
  uint64_t serial() const { return serial_; }
  /// The plan's number. The last number stands for all plans that find no more room.
  uint16_t add_plan(TracedPlan plan);

  /// The place of the next record; the oldest one's when the ring is full.
  StepRecord& next() {
    // Stores become visible in order: a record's line that had to be fetched first would hold up the next message.
    __builtin_prefetch(&records_[(num_written_ + kRecordsAhead) & mask_], 1);
    return records_[num_written_++ & mask_];
  }
  /// Writes the record of an instruction that was ready at `ready_ticks` and has just been done; `what` has all but
  /// kind and times. Forgets the wait. The fields are set at once: one by one, those that share a word would wait for
  /// one another.
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
  /// When the operation's last instruction was done; 0: there is none since it began. For a driver that does not pause.
  uint64_t last_ticks() const { return last_ticks_; }
  void begin_operation() { last_ticks_ = 0; }

  /// From any thread.
  void add_span(TraceSpan span);

  uint64_t num_written() const { return num_written_; }
  uint64_t capacity() const { return mask_ + 1; }
  uint64_t num_lost() const { return num_written_ > capacity() ? num_written_ - capacity() : 0; }
  const TraceIdentity& identity() const { return identity_; }
  /// Gives the communicator its number, which may be unknown when the trace starts.
  void name(uint64_t communicator) { identity_.communicator = communicator; }

  /// Writes everything so far into `path`, by way of a temporary file beside it; recording may go on. `why`: the reason
  /// of an error's dump, empty otherwise. Errors: kSystem with the path and the errno's text. O(records).
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

/// Where a trace of the given communicator goes: `directory`/rank-R-comm-C.rtrace; the `session`-th trace of one
/// communicator, counted from 0, has .S before the ending from the second on.
std::string trace_path(const std::string& directory, const TraceIdentity& identity, uint32_t session);

}  // namespace rondo
