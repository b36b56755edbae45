// Groups: a thread collects the calls between group_start and group_end, and group_end runs them as one batch.
#include <algorithm>
#include <vector>

#include "api/communicator_impl.h"
#include "base/no_cancel.h"

namespace rondo {
namespace {

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};

// A group belongs to the thread that opened it, as in NCCL.
Group& this_threads_group() {
  thread_local Group group;
  return group;
}

}  // namespace

// All ranks run messages after collectives, so that no collective waits for a message that waits for it.
Status run_batch(std::vector<Call> calls) {
  Status first;
  const auto refused = [&first](const Call& c) {  // since the group was opened there may have been a fork or an abort
    Status s = c.backend->check_process();
    if (s.ok())
      if (const Status failed = c.backend->ready(); !failed.ok()) s = c.backend->not_started(c.shape, failed);
    if (s.ok()) return false;
    if (first.ok()) first = s;
    if (c.work != nullptr) c.work->end(std::move(s));
    return true;
  };
  std::erase_if(calls, refused);
  std::stable_partition(calls.begin(), calls.end(),
                        [](const Call& c) { return !is_point_to_point(c.shape.collective); });
  const auto hosts =
      std::stable_partition(calls.begin(), calls.end(), [](const Call& c) { return c.backend->ordinal() >= 0; });
  for (const std::span<Call> part : {std::span(calls.begin(), hosts), std::span(hosts, calls.end())})
    if (!part.empty())
      if (Status s = part.front().backend->submit(part); first.ok()) first = std::move(s);
  return first;
}

bool group_open() { return this_threads_group().depth > 0; }
void add_to_group(const Call& call) { this_threads_group().calls.push_back(call); }
void group_start() { ++this_threads_group().depth; }

Status group_end() {
  Group& group = this_threads_group();
  if (group.depth == 0) return Status(StatusCode::kInvalidArgument, "group_end without group_start");
  if (--group.depth > 0) return {};
  const NoCancel no_cancel;
  return run_batch(std::exchange(group.calls, {}));
}

}  // namespace rondo
