// Groups: the calls that a thread collects between group_start and group_end, and runs as one batch.
#include <algorithm>
#include <vector>

#include "api/communicator_impl.h"
#include "base/no_cancel.h"

namespace rondo {
namespace {

struct GroupedCall {
  CommunicatorImpl* comm;
  CallArguments call;
  std::shared_ptr<WorkState> state;
  bool blocking;  // the caller gave no Work: group_end waits
};

struct Group {
  int depth = 0;
  std::vector<GroupedCall> calls;
};

// A group belongs to the thread that opened it, as in NCCL's interface.
Group& this_threads_group() {
  thread_local Group group;
  return group;
}

}  // namespace

bool group_open() { return this_threads_group().depth > 0; }

void add_to_group(CommunicatorImpl& comm, const CallArguments& call, Work* work) {
  auto state = std::make_shared<WorkState>();
  this_threads_group().calls.push_back({&comm, call, state, work == nullptr});
  if (work != nullptr) *work = comm.make_work(std::move(state));
}

void group_start() { ++this_threads_group().depth; }

Status group_end() {
  Group& group = this_threads_group();
  if (group.depth == 0) return Status(StatusCode::kInvalidArgument, "group_end without group_start");
  if (--group.depth > 0) return {};
  const NoCancel no_cancel;
  std::vector<GroupedCall> calls;
  calls.swap(group.calls);

  // Messages after collectives: on every rank alike, so that no collective waits behind a message that waits for it.
  std::stable_partition(calls.begin(), calls.end(),
                        [](const GroupedCall& c) { return !is_point_to_point(c.call.request.collective); });
  Status first_error;
  const auto refuse = [&first_error](GroupedCall& c, Status why) {
    if (first_error.ok()) first_error = why;
    c.state->op.status = std::move(why);
    c.state->op.done.store(true, std::memory_order_release);
    c.state->submitted.store(true, std::memory_order_release);
  };
  std::erase_if(calls, [&refuse](GroupedCall& c) {  // the group may have been opened before a fork
    Status s = c.comm->check_process();
    const bool refused = !s.ok();
    if (refused) refuse(c, std::move(s));
    return refused;
  });
  std::vector<DeviceRequest> requests;
  std::vector<DeviceEngine::Entry> entries;
  requests.reserve(calls.size());
  for (GroupedCall& c : calls)
    if (DeviceSide* device = c.comm->device(); device != nullptr) {
      c.state->comm = c.comm;
      requests.push_back(c.comm->device_request(c.call, c.state));
      entries.push_back({&device->engine(), &requests.back()});
      c.state->submitted.store(true, std::memory_order_release);
    }
  if (Status s = DeviceEngine::run(entries); first_error.ok()) first_error = std::move(s);
  std::erase_if(calls, [](const GroupedCall& c) { return c.comm->device() != nullptr; });
  std::vector<BatchEntry> batch;
  std::vector<CommunicatorImpl*> with_async;
  for (GroupedCall& c : calls) {
    Status s = c.blocking ? Status() : c.comm->make_progress_thread();
    if (s.ok()) s = c.comm->admit(c.call, c.state);
    if (!s.ok()) {
      refuse(c, std::move(s));
    } else if (c.blocking) {
      batch.push_back({&c.comm->queue(), &c.state->op});
    } else if (std::find(with_async.begin(), with_async.end(), c.comm) == with_async.end()) {
      with_async.push_back(c.comm);
    }
  }
  for (CommunicatorImpl* comm : with_async) comm->kick_progress();
  Status ran = Engine::run(batch);
  return first_error.ok() ? ran : first_error;
}

}  // namespace rondo
