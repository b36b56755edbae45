#include "plan/call.h"

#include <sched.h>

#include <utility>
#include <vector>

#include "base/callbacks.h"

namespace rondo {

WorkState::OnDone WorkState::ended_;

void WorkState::post(OnDone* next, const Status& status, Callbacks& to) {
  const std::unique_ptr<OnDone> owned(next);
  to.post([fn = std::move(next->fn), status] { fn(status); });
}

void WorkState::end(Status s) {
  if (backend != nullptr && ending_.exchange(true, std::memory_order_acq_rel)) return;
  status = std::move(s);
  submitted.store(true, std::memory_order_release);
  std::vector<OnDone*> all;  // newest first
  if (backend != nullptr)
    for (OnDone* o = on_done_.exchange(&ended_, std::memory_order_acq_rel); o != nullptr; o = o->earlier)
      all.push_back(o);
  if (all.empty()) return done.store(true, std::memory_order_release);  // the owner may free it from here on
  const Status copy = status;
  const std::shared_ptr<Callbacks> to = callbacks;
  done.store(true, std::memory_order_release);
  for (; !all.empty(); all.pop_back()) post(all.back(), copy, *to);
}

Status WorkState::when_done(std::function<void(const Status&)> fn) {
  RONDO_TRY(callbacks->start());
  auto* const mine = new OnDone{std::move(fn), on_done_.load(std::memory_order_acquire)};
  while (mine->earlier != &ended_)
    if (on_done_.compare_exchange_weak(mine->earlier, mine, std::memory_order_acq_rel)) return {};
  while (!done.load(std::memory_order_acquire)) sched_yield();  // end() sets it next
  post(mine, status, *callbacks);
  return {};
}

WorkState::~WorkState() {
  for (OnDone* o = on_done_.load(std::memory_order_acquire); o != nullptr && o != &ended_;)
    delete std::exchange(o, o->earlier);
}

}  // namespace rondo
