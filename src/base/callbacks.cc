#include "base/callbacks.h"

#include <utility>

#include "base/thread.h"

namespace rondo {

Status Callbacks::start() {
  const std::lock_guard guard(mutex_);
  if (runs_) return {};
  const NoSignals inherited;
  Thread thread;
  RONDO_TRY(thread.start("the thread that calls functions of works that are done", [this] { run(); }));
  thread.detach();
  runs_ = true;
  return {};
}

void Callbacks::post(std::function<void()> fn) {
  const std::lock_guard guard(mutex_);
  waiting_.push_back(std::move(fn));
  posted_.notify_one();
}

void Callbacks::run() {
  for (;;) {
    std::function<void()> fn;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !waiting_.empty(); });
      fn = std::move(waiting_.front());
      waiting_.pop_front();
    }
    fn();
  }
}

}  // namespace rondo
