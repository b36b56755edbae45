// Shrinking: a communicator of the survivors.
#include <fmt/format.h>

#include "api/communicator_impl.h"

namespace rondo {

Expected<std::unique_ptr<CommunicatorImpl>> CommunicatorImpl::shrink(const std::vector<Rank>& excluded,
                                                                     const Config& config) {
  const std::lock_guard guard(control_mutex_);
  for (const Rank r : excluded)
    if (r < 0 || r >= nranks_ || r == rank_)
      return bad("excluded", fmt::format("names rank {}: {}", r, r == rank_ ? "the caller" : "there is none"));
  RONDO_TRY_ASSIGN(const ChildOptions options, child_options(config));
  auto made = control_->make_of_survivors(excluded, options);
  if (!made.ok()) return in_call("shrink", made.status());
  return made;
}

}  // namespace rondo
