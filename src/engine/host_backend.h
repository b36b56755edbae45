// HostBackend: runs the calls on host memory. It plans them, adds them to the queue, and drives the queue.
//
// A blocking call on an idle queue runs at once in the caller's thread. One Operation serves all such calls. Other
// calls are admitted to the queue. A thread that waits for a batch steps all queues of the batch, interleaved, until it
// is done.
//
// Thread safety: any thread may submit. If several batches use one communicator, one batch at a time has the
// communicator's driver role.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/progress.h"
#include "engine/queue.h"
#include "plan/planner.h"

namespace rondo {

class HostBackend final : public Backend {
 public:
  HostBackend(Rank rank, const HostLayout& hosts, const PlannerSettings& settings, const KernelTable& kernels,
              const SpinSettings& spin, Transport& transport)
      : Backend(rank),
        transport_(transport),
        queue_(rank, hosts.nranks(), transport, spin),
        planner_(rank, hosts, settings, queue_.ports(), kernels) {}

  OperationQueue& queue() { return queue_; }
  /// Returns the planner. It belongs to the driver: use it between lock() and unlock().
  Planner& planner() { return planner_; }
  const Planner& planner() const { return planner_; }
  /// Waits for the driver role and takes it. The thread that has the role waits with a deadline. Therefore this ends
  /// too.
  void lock();
  void unlock() { queue_.leave(); }
  /// Sets the progress thread (nullptr: the process's one), and its CPUs if this backend starts it.
  void set_progress(std::shared_ptr<ProgressThread> thread, const std::optional<Binding>& binding);
  const std::shared_ptr<ProgressThread>& progress() const { return progress_; }
  /// Waits for the running calls and leaves the progress thread. No more calls may follow.
  void stop();
  /// Plans a call and adds it to the queue. Errors: not_started().
  Expected<std::shared_ptr<Operation>> admit(const Call& call);
  /// Drives the queues of these operations until all are done. Returns the first error in their order, or ok.
  /// kInProgress: they are not done at end_ns.
  static Status run(std::span<const std::shared_ptr<Operation>> batch, uint64_t end_ns = kNever);

  Status check(Call& call) const override;
  Status submit(std::span<Call> calls) override;
  std::shared_ptr<WorkState> make_work() override { return std::make_shared<Operation>(this); }
  Status wait(WorkState& work, uint64_t end_ns) override;
  Status drain() override;
  Status finish(Status ended) override;
  Status error() override;
  Expected<std::string> explain(const CallShape& shape) override;
  Expected<double> forecast_us(const CallShape& shape) override;
  Expected<void*> alloc(uint64_t bytes, const ControlGather& control) override;
  Status free(void* ptr, const ControlGather& control) override;
  Status register_memory(void* ptr, uint64_t bytes, const ControlGather& control) override;
  Status deregister_memory(void* ptr, const ControlGather& control) override;

 private:
  static std::vector<OperationQueue*> queues_of(std::span<const std::shared_ptr<Operation>> batch);
  static Status submit_all(std::span<Call> calls);
  template <bool kTraced>
  Status run_once();
  Status run_alone();
  bool reaches(const void* ptr, uint64_t bytes) const;
  Status start_progress();
  void look_at_intervals();

  Transport& transport_;
  OperationQueue queue_;
  Planner planner_;
  Operation blocking_;  // serves all blocking calls on an idle queue; belongs to the driver
  std::vector<std::shared_ptr<Operation>> under_way_;  // belongs to the driver
  std::optional<Binding> binding_;
  std::mutex progress_mutex_;
  std::shared_ptr<ProgressThread> progress_;
  bool is_helped_ = false;  // by the progress thread
  std::atomic<uint64_t> next_look_ns_{0};
};

}  // namespace rondo
