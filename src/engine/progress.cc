#include "engine/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/forks.h"

namespace rondo {

std::shared_ptr<ProgressThread> ProgressThread::of_process() {
  struct Known {
    std::mutex mutex;
    std::weak_ptr<ProgressThread> thread;
  };
  auto& known = of_this_process<Known>();
  const std::lock_guard guard(known.mutex);
  std::shared_ptr<ProgressThread> found = known.thread.lock();
  if (found == nullptr) known.thread = found = std::make_shared<ProgressThread>();
  return found;
}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;  // it was never started
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

Status ProgressThread::add(OperationQueue& queue, const std::optional<Binding>& binding) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable())
    RONDO_TRY(
        thread_.start(fmt::format("rank {}: the progress thread", queue.rank()), [this, rank = queue.rank(), binding] {
          if (const Status s = binding ? bind_this_thread(*binding) : Status(); !s.ok())
            std::fprintf(stderr, "rondo: rank %d: its progress thread is %s\n", rank, std::string(s.message()).c_str());
          take_short_turns();
          loop();
        }));
  queues_.push_back(&queue);
  queue.set_helper(this);
  return {};
}

void ProgressThread::remove(OperationQueue& queue) {
  std::unique_lock lock(mutex_);
  queue.set_helper(nullptr);
  std::erase(queues_, &queue);
  if (!drives(queue)) return;
  changed_ = true;
  ring(*queue.bell());
  left_.wait(lock, [&] { return !drives(queue); });
}

void ProgressThread::kick(OperationQueue& queue) {
  const std::lock_guard lock(mutex_);             // a thread about to sleep must see the admitted operation
  if (drives(queue)) return ring(*queue.bell());  // it may be waiting for an earlier operation's messages
  changed_ = true;
  work_.notify_one();
  if (!driven_.empty()) ring(*driven_.front()->bell());
}

bool ProgressThread::drives(const OperationQueue& queue) const {
  return std::ranges::find(driven_, &queue) != driven_.end();
}

void ProgressThread::loop() {
  for (std::unique_lock lock(mutex_); !stop_;) {
    changed_ = false;
    driven_.clear();
    std::ranges::copy_if(queues_, std::back_inserter(driven_), [](const auto* q) { return q->needs_helper(); });
    left_.notify_all();
    if (driven_.empty()) {
      work_.wait(lock);
    } else {
      lock.unlock();
      drive();
      lock.lock();
    }
  }
}

// Returns when another set of queues needs help.
void ProgressThread::drive() {
  QueueWatch watch(driven_);
  SpinSettings settings = driven_.front()->spin().in_background();
  for (const OperationQueue* q : driven_) {
    const SpinSettings other = q->spin().in_background();
    settings.pauses = std::min(settings.pauses, other.pauses);
    settings.yield_us = std::min(settings.yield_us, other.yield_us);
  }
  HostSpin spin(settings, watch, driven_.front()->bell(), watch.more_bells());
  while (!changed_ && std::ranges::all_of(driven_, [](const auto* q) { return q->needs_helper(); })) {
    bool moved = false;
    for (OperationQueue* q : driven_)
      if (q->drive()) {
        moved |= q->step();
        q->leave();
      }
    if (moved) spin.moved();
    else spin.idle();
    watch.end_pass();
  }
  for (OperationQueue* q : driven_)
    if (!q->contended()) q->rest();
}

}  // namespace rondo
