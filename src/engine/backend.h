// Backend: runs the calls of one rank's communicator in the memory of its buffers. HostBackend and DeviceEngine
// implement it.
//
// Thread safety: any thread, unless a function says otherwise.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/forks.h"
#include "plan/call.h"
#include "rondo/status.h"
#include "trace/step_trace.h"

namespace rondo {

/// The exchange between ranks that alloc and register_memory need. Hold `mutex` during an exchange.
struct ControlGather {
  std::mutex& mutex;
  std::function<Status(std::string_view mine, std::vector<std::string>* all)> gather;
};

/// The end of a wait without a limit.
inline constexpr uint64_t kNever = UINT64_MAX;

class Backend {
 public:
  explicit Backend(Rank rank) : rank_(rank) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Refuses options that a call cannot have in this memory, and clears options that have no effect here.
  virtual Status check(Call& call) const = 0;
  /// Runs or starts checked calls of one communicator, or of a group over several communicators with this kind of
  /// backend. If a call cannot be started, ends its work. Returns the first error.
  virtual Status submit(std::span<Call> calls) = 0;
  virtual std::shared_ptr<WorkState> make_work() { return std::make_shared<WorkState>(this); }
  /// Waits until a call has ended. Returns kInProgress if it has not at end_ns on monotonic_ns().
  virtual Status wait(WorkState& work, uint64_t end_ns) = 0;
  /// Waits until all calls have ended. Returns the first error.
  virtual Status drain() = 0;
  /// Ends this rank's calls. `ended` is the status of the earlier calls. Returns it, or (host memory) kMismatch if
  /// another rank's last calls differ from this rank's.
  virtual Status finish(Status ended) = 0;
  /// Returns ok, or the error after which the communicator refuses work. Never blocks.
  virtual Status error() = 0;
  virtual Expected<std::string> explain(const CallShape& shape) = 0;
  virtual Expected<double> forecast_us(const CallShape& shape) = 0;
  // These are as in Communicator.
  virtual Expected<void*> alloc(uint64_t bytes, const ControlGather& control) = 0;
  virtual Status free(void* ptr, const ControlGather& control) = 0;
  virtual Status register_memory(void* ptr, uint64_t bytes, const ControlGather& control) = 0;
  virtual Status deregister_memory(void* ptr, const ControlGather& control) = 0;
  /// Traces calls that are not in the queue. Later calls are traced into `trace`. nullptr: waits for the running calls,
  /// and traces none afterwards. Others must not use the trace meanwhile.
  virtual Status set_trace(StepTrace* /*trace*/) { return {}; }
  /// Makes the backend check for an abort at once.
  virtual void wake() {}
  /// Returns CUDA's number of the device; -1 for host memory.
  virtual int ordinal() const { return -1; }

  Rank rank() const { return rank_; }
  /// Returns false in a forked child of the process that made it.
  bool is_of_this_process() const { return static_cast<bool>(made_here_); }
  Status check_process() const;
  /// Its communicator was finalized: it takes no more calls.
  void close() { closed_.store(true, std::memory_order_relaxed); }
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }
  /// Returns ok if it takes calls.
  Status ready();
  Status bad(std::string_view argument, std::string_view why) const;
  /// Adds the call to an error that occurs before the call has a number in the order of operations.
  Status not_started(const CallShape& shape, const Status& why) const;

 protected:
  const Rank rank_;
  const MadeHere made_here_;

 private:
  std::atomic<bool> closed_{false};
};

}  // namespace rondo
