// HostBackend: runs the calls of host memory: plans them, puts them into the queue, and drives it.
//
// A blocking call on an idle queue runs at once in the caller's thread, in one Operation that serves all of them. Any
// other is admitted to the queue, and whoever waits steps all queues that its batch is in, interleaved, until it is done.
//
// Thread safety: any thread may submit; batches that share a communicator take turns through its driver role.
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
  /// Belongs to the driver: between lock() and unlock().
  Planner& planner() { return planner_; }
  const Planner& planner() const { return planner_; }
  /// Takes the driver role, waiting for it: whoever has it waits with a deadline, so this ends too.
  void lock();
  void unlock() { queue_.leave(); }
  /// Where its progress thread runs.
  void bind(const std::optional<Binding>& binding) { binding_ = binding; }
  /// No more calls come: waits for those under way, whose errors are their waiters'.
  void stop();
  /// Plans a call and gives it its place in the order. Errors: not_started().
  Expected<std::shared_ptr<Operation>> admit(const Call& call);
  /// Drives the queues of these operations until all are done. The first error in their order, or ok.
  static Status run(std::span<const std::shared_ptr<Operation>> batch);

  Status check(Call& call) const override;
  Status submit(std::span<Call> calls) override;
  std::shared_ptr<WorkState> make_work() override { return std::make_shared<Operation>(this); }
  Status wait(WorkState& work) override;
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
  Status run_once();
  Status run_alone();
  bool reaches(const void* ptr, uint64_t bytes) const;
  Status start_progress();
  void kick_progress();

  Transport& transport_;
  OperationQueue queue_;
  Planner planner_;
  Operation blocking_;                                 // serves all blocking calls on an idle queue; the driver's
  std::vector<std::shared_ptr<Operation>> under_way_;  // the driver's
  std::optional<Binding> binding_;
  std::mutex progress_mutex_;
  std::unique_ptr<ProgressThread> progress_;
};

}  // namespace rondo
