// The end of a communicator's work.
#include <fmt/format.h>

#include "api/communicator_impl.h"

namespace rondo {

Status CommunicatorImpl::finalize() {
  if (finalized_) return error();
  Status s = backend_->drain();
  if (s.ok()) s = error();
  s = backend_->finish(std::move(s));
  const std::lock_guard driver(host_);
  if (!queue_.has_failed()) {
    finalized_ = true;
    tracing_->finish();  // the following fail() is not a failure and must not be recorded
    queue_.fail(Status(StatusCode::kInvalidArgument,
                       fmt::format("rank {}: the communicator was finalized: it takes no more calls", rank_)));
  }
  return s;
}

}  // namespace rondo
