// The end of a communicator's work.
#include <fmt/format.h>

#include "api/communicator_impl.h"

namespace rondo {

Status CommunicatorImpl::drain() {
  if (device_ != nullptr) return device_->engine().drain();
  lock();
  const std::vector<std::shared_ptr<WorkState>> mine = under_way_;  // kept alive: others may forget them meanwhile
  unlock();
  std::vector<BatchEntry> rest;
  for (const auto& w : mine) rest.push_back({&queue_, &w->op});
  return Engine::run(rest);
}

Status CommunicatorImpl::finalize() {
  if (finalized_) return error();
  Status s = drain();
  if (s.ok()) s = error();
  if (device_ != nullptr && !queue_.has_failed()) {
    (void)device_->engine().set_trace(nullptr);
    device_->engine().set_failure_hook(nullptr);
  }
  lock();
  if (s.ok() && device_ == nullptr) s = queue_.compare_calls();
  if (!queue_.has_failed()) {
    finalized_ = true;
    tracing_->finish();  // what follows is no failure to be recorded
    queue_.fail(Status(StatusCode::kInvalidArgument,
                       fmt::format("rank {}: the communicator was finalized: it takes no more calls", rank_)));
  }
  unlock();
  return s;
}

}  // namespace rondo
