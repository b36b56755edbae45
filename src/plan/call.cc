#include "plan/call.h"

#include <utility>
#include <vector>

#include "base/callbacks.h"
#include "base/forks.h"

namespace rondo {

WorkState::OnDone WorkState::ended_;

void WorkState::post(OnDone* next, const Status& status) {
  const std::unique_ptr<OnDone> owned(next);
  of_this_process<Callbacks>().post([fn = std::move(next->fn), status] { fn(status); });
}

void WorkState::end(Status s) {
  status = std::move(s);
  submitted.store(true, std::memory_order_release);
  std::vector<OnDone*> all;  // newest first
  if (backend != nullptr)
    for (OnDone* o = on_done_.exchange(&ended_, std::memory_order_acq_rel); o != nullptr; o = o->earlier)
      all.push_back(o);
  const Status copy = all.empty() ? Status() : status;
  done.store(true, std::memory_order_release);  // the owner may free it from here on
  for (; !all.empty(); all.pop_back()) post(all.back(), copy);
}

void WorkState::when_done(std::function<void(const Status&)> fn) {
  auto* const mine = new OnDone{std::move(fn), on_done_.load(std::memory_order_acquire)};
  while (mine->earlier != &ended_)
    if (on_done_.compare_exchange_weak(mine->earlier, mine, std::memory_order_acq_rel)) return;
  post(mine, status);
}

WorkState::~WorkState() {
  for (OnDone* o = on_done_.load(std::memory_order_acquire); o != nullptr && o != &ended_;)
    delete std::exchange(o, o->earlier);
}

}  // namespace rondo
