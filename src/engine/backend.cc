#include "engine/backend.h"

#include "base/error.h"

namespace rondo {

Status Backend::check_process() const {
  return is_of_this_process() ? Status() : forked_error(fmt::format("rank {}", rank_));
}

Status Backend::ready() {
  if (!is_closed()) return error();
  return invalid_argument("rank {}: the communicator was finalized: it takes no more calls", rank_);
}

Status Backend::bad(std::string_view argument, std::string_view why) const {
  return invalid_argument("rank {}: {} {}", rank_, argument, why);
}

Status Backend::not_started(const CallShape& s, const Status& why) const {
  if (why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kUnsupported) return why;  // complete
  return make_error(why.code(), "rank {}: {}{} of {} {} was not started: {}", rank_, collective_name(s.collective),
                    s.counts != nullptr ? "_v" : "", s.count_elems, dtype_name(s.dtype), why.message());
}

}  // namespace rondo
