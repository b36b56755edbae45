#include "engine/backend.h"

#include <fmt/format.h>

namespace rondo {

Status Backend::check_process() const {
  return is_of_this_process() ? Status() : forked_error(fmt::format("rank {}", rank_));
}

Status Backend::ready() {
  if (!is_closed()) return error();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("rank {}: the communicator was finalized: it takes no more calls", rank_));
}

Status Backend::bad(std::string_view argument, std::string_view why) const {
  return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: {} {}", rank_, argument, why));
}

Status Backend::not_started(const CallShape& s, const Status& why) const {
  if (why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kUnsupported) return why;  // they say it
  return Status(why.code(),
                fmt::format("rank {}: {}{} of {} {} was not started: {}", rank_, collective_name(s.collective),
                            s.counts != nullptr ? "_v" : "", s.count_elems, dtype_name(s.dtype), why.message()));
}

}  // namespace rondo
