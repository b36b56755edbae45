#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <vector>

namespace rondo {
namespace {

// Watches one queue whose driver role the waiting thread holds.
class QueueWatch final : public WaitObserver {
 public:
  explicit QueueWatch(OperationQueue& queue) : queue_(queue) {}
  bool urgent() override { return queue_.transport().aborted_by().has_value() && queue_.check_abort(); }
  bool give_up(uint64_t waited_ns) override {
    queue_.diagnose(waited_ns);
    return queue_.has_failed();
  }
  void crowded() override { queue_.even_out(); }

 private:
  OperationQueue& queue_;
};

// Watches the queues of a batch. Takes a queue's role for a closer look.
class BatchWatch final : public WaitObserver {
 public:
  explicit BatchWatch(const std::vector<OperationQueue*>& queues) : queues_(queues) {}
  bool urgent() override {
    for (OperationQueue* q : queues_)
      if (q->transport().aborted_by() && q->drive()) {
        q->check_abort();
        q->leave();
      }
    return false;
  }
  bool give_up(uint64_t waited_ns) override {
    for (OperationQueue* q : queues_)
      if (q->drive()) {
        q->diagnose(waited_ns);
        q->leave();
      }
    return false;
  }

 private:
  const std::vector<OperationQueue*>& queues_;
};

std::vector<OperationQueue*> queues_of(std::span<const BatchEntry> batch) {
  std::vector<OperationQueue*> queues;
  for (const BatchEntry& e : batch)
    if (std::find(queues.begin(), queues.end(), e.queue) == queues.end()) queues.push_back(e.queue);
  return queues;
}

bool all_done(std::span<const BatchEntry> batch) {
  return std::all_of(batch.begin(), batch.end(),
                     [](const BatchEntry& e) { return e.op->done.load(std::memory_order_acquire); });
}

Status first_error(std::span<const BatchEntry> batch) {
  for (const BatchEntry& e : batch)
    if (!e.op->status.ok()) return e.op->status;
  return {};
}

}  // namespace

Status Engine::run(OperationQueue& queue, Operation& op) {
  if (queue.has_failed()) [[unlikely]] return queue.failure();
  if (op.program->once && queue.may_run_once()) {
    QueueWatch watch(queue);
    HostSpin spin(queue.spin(), watch, queue.bell());
    return queue.run_once(op, spin) ? Status() : queue.failure();
  }
  queue.begin_alone(op);
  if (!op.done.load(std::memory_order_relaxed)) {
    QueueWatch watch(queue);
    HostSpin spin(queue.spin(), watch, queue.bell());
    for (;;) {
      if (queue.step_alone(op)) {
        if (op.done.load(std::memory_order_relaxed)) break;
        spin.moved();
      } else if (!spin.idle(queue.executor().missing())) {
        break;  // the queue has failed, and op with it
      }
    }
  }
  queue.rest();
  return std::move(op.status);
}

Status Engine::run(std::span<const BatchEntry> batch) {
  const std::vector<OperationQueue*> queues = queues_of(batch);
  if (queues.empty()) return {};
  BatchWatch watch(queues);
  SpinSettings settings = queues[0]->spin();
  HostSpin spin(settings, watch, queues.size() == 1 ? queues[0]->bell() : nullptr);
  for (OperationQueue* q : queues) q->contend();
  constexpr uint32_t kPassesPerCheck = 1 << 14;  // other operations may move while one is stuck
  for (uint32_t pass = 1; !all_done(batch); ++pass) {
    bool moved = false;
    for (OperationQueue* q : queues)
      if (q->drive()) {
        moved |= q->step();
        q->leave();
      }
    if (moved) spin.moved();
    else spin.idle();
    if (pass % kPassesPerCheck == 0) watch.give_up(0);
  }
  for (OperationQueue* q : queues) {
    q->stop_contending();
    q->rest();
  }
  return first_error(batch);
}

Status Engine::run_cooperative(std::span<const BatchEntry> batch, uint64_t seed) {
  const std::vector<OperationQueue*> queues = queues_of(batch);
  std::mt19937_64 random(seed);
  for (uint64_t stuck = 0; !all_done(batch);) {
    OperationQueue& q = *queues[random() % queues.size()];
    if (!q.drive()) continue;
    const bool moved = q.step_any(random());
    q.leave();
    stuck = moved ? 0 : stuck + 1;
    if (stuck > 10000 * (queues.size() + batch.size()))
      return Status(StatusCode::kTimeout, fmt::format("no lane of {} operations on {} ranks can move (seed {})",
                                                      batch.size(), queues.size(), seed));
  }
  return first_error(batch);
}

}  // namespace rondo
