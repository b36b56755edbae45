// Backend: what runs the calls of one rank's communicator where its buffers lie. HostBackend and DeviceEngine.
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

/// How calls that make memory reachable exchange what each rank has to say; `mutex` keeps them apart.
struct ControlGather {
  std::mutex& mutex;
  std::function<Status(std::string_view mine, std::vector<std::string>* all)> gather;
};

class Backend {
 public:
  explicit Backend(Rank rank) : rank_(rank) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// Refuses what a call cannot have in this memory, and forgets what means nothing here.
  virtual Status check(Call& call) const = 0;
  /// Runs or starts calls that have been checked: of one communicator, or of a group over several with backends of this
  /// kind. Ends their works where they cannot be started. Errors: the first.
  virtual Status submit(std::span<Call> calls) = 0;
  virtual std::shared_ptr<WorkState> make_work() { return std::make_shared<WorkState>(this); }
  /// Waits until a call has ended.
  virtual Status wait(WorkState& work) = 0;
  /// Waits until all calls have ended; the first error.
  virtual Status drain() = 0;
  /// No more calls come, and those before have ended like this. Errors: also what is seen of other ranks' last calls.
  virtual Status finish(Status ended) = 0;
  /// Ok, or the error after which the communicator refuses work. Never blocks.
  virtual Status error() = 0;
  virtual Expected<std::string> explain(const CallShape& shape) = 0;
  virtual Expected<double> forecast_us(const CallShape& shape) = 0;
  // As Communicator's.
  virtual Expected<void*> alloc(uint64_t bytes, const ControlGather& control) = 0;
  virtual Status free(void* ptr, const ControlGather& control) = 0;
  virtual Status register_memory(void* ptr, uint64_t bytes, const ControlGather& control) = 0;
  virtual Status deregister_memory(void* ptr, const ControlGather& control) = 0;
  /// For calls that the queue does not see. Calls from now on are traced into it; nullptr: those under way to the end,
  /// and then none. It must not be touched by others meanwhile.
  virtual Status set_trace(StepTrace* /*trace*/) { return {}; }
  /// Somebody has raised an abort: it is to be looked for at once.
  virtual void wake() {}
  /// CUDA's number of the device; -1: host memory.
  virtual int ordinal() const { return -1; }

  Rank rank() const { return rank_; }
  /// False in a forked child of the process that made it.
  bool is_of_this_process() const { return static_cast<bool>(made_here_); }
  Status check_process() const;
  Status bad(std::string_view argument, std::string_view why) const;
  /// Which call it was, when an error comes before it has a place in the order of operations.
  Status not_started(const CallShape& shape, const Status& why) const;

 protected:
  const Rank rank_;
  const MadeHere made_here_;
};

}  // namespace rondo
