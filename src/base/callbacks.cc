#include "base/callbacks.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/forks.h"
#include "base/thread.h"

namespace rondo {

struct Callbacks::State {
  const MadeHere here = {};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool runs = false, ends = false;
};

Callbacks::Callbacks() : state_(std::make_shared<State>()) {}

Callbacks::~Callbacks() {
  if (!state_->here) return;
  const std::lock_guard guard(state_->mutex);
  state_->ends = true;
  state_->changed.notify_one();
}

Status Callbacks::start() {
  const std::lock_guard guard(state_->mutex);
  if (state_->runs) return {};
  const NoSignals inherited;
  Thread thread;
  RONDO_TRY(thread.start("the thread that calls the functions of works", [state = state_] { run(*state); }));
  thread.detach();
  state_->runs = true;
  return {};
}

void Callbacks::post(std::function<void()> fn) {
  if (!state_->here) return;
  const std::lock_guard guard(state_->mutex);
  state_->waiting.push_back(std::move(fn));
  state_->changed.notify_one();
}

void Callbacks::run(State& state) {
  while (state.here) {  // a function may have forked, and returned in the child
    std::function<void()> fn;
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock, [&] { return state.ends || !state.waiting.empty(); });
      if (state.waiting.empty()) return;
      fn = std::move(state.waiting.front());
      state.waiting.pop_front();
    }
    fn();
  }
}

}  // namespace rondo
