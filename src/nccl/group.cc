#include "nccl/group.h"

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "base/no_cancel.h"
#include "base/thread.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {

Group& Group::mine() {
  thread_local Group group;
  return group;
}

void Group::fail(const Status& why) {
  if (!open()) (void)take();  // a single call leaves nothing behind
  else if (error_.ok()) error_ = why;
}

Status Group::join(const Comm& comm) {
  if (blocking_.value_or(comm.config.blocking) != comm.config.blocking)
    return invalid_argument("the group has blocking and nonblocking communicators: use only one kind");
  blocking_ = comm.config.blocking;
  return {};
}

Status Group::add(PendingCall call) {
  if (!contents_.setups.empty())
    return unsupported("the group makes or ends communicators: put operations into a separate group");
  RONDO_TRY(join(*call.comm));
  contents_.calls.push_back(std::move(call));
  if (open()) return {};
  start();
  return end();
}

Status Group::add(Setup setup) {
  // The call's mode is the parent's; the child's may differ.
  const Status refused = !contents_.calls.empty()
                             ? unsupported("the group has operations: make and end communicators in a separate group")
                             : join(setup.parent != nullptr ? *setup.parent : *setup.made);
  if (!refused.ok()) {
    withdraw({setup});
    return refused;
  }
  contents_.setups.push_back(std::move(setup));
  if (open()) return {};
  start();
  return end();
}

void Group::add_last(std::function<void()> what) {
  if (!open()) return what();
  contents_.last.push_back(std::move(what));
}

Group::Contents Group::take() {
  blocking_.reset();
  return std::exchange(contents_, Contents());
}

void Group::withdraw(const std::vector<Setup>& setups) {
  for (const Setup& s : setups) {
    if (s.made == nullptr) continue;
    process().remove(s.made->handle);
    if (s.out != nullptr) publish(s.out, nullptr);
  }
}

std::vector<std::shared_ptr<Comm>> Group::comms_of(const Contents& contents) {
  std::vector<std::shared_ptr<Comm>> all;
  const auto add = [&all](const std::shared_ptr<Comm>& comm) {
    if (comm != nullptr && std::ranges::find(all, comm) == all.end()) all.push_back(comm);
  };
  for (const PendingCall& c : contents.calls) add(c.comm);
  for (const Setup& s : contents.setups) add(s.made), add(s.parent);
  return all;
}

Status Group::run(Contents& contents) {
  if (!contents.calls.empty()) return issue(contents.calls);
  // All setups wait for other ranks, and some of these may be in this process.
  return run_concurrently("a thread of ncclGroupEnd", contents.setups.size(),
                          [&](size_t i) { return contents.setups[i].run(); });
}

Status Group::end() {
  if (!open()) return unsupported("ncclGroupEnd without ncclGroupStart");
  const NoCancel no_cancel;
  if (--depth_ > 0) return {};
  const bool blocking = blocking_.value_or(true);
  Status error = std::exchange(error_, Status());
  Contents contents = take();
  const auto last = std::exchange(contents.last, {});
  const auto comms = comms_of(contents);
  ended_version_ = comms.empty() ? 0 : UINT_MAX;
  for (const auto& comm : comms) {
    ended_version_ = std::min(ended_version_, comm->caller_version());
    if (error.ok()) error = comm->check_process();  // the group may have been opened before a fork
  }
  Status result = error;
  if (!error.ok()) {
    withdraw(contents.setups);
  } else if (blocking) {
    result = run(contents);
    if (!result.ok()) {
      withdraw(contents.setups);
      for (const auto& comm : comms) comm->note_error(std::string(result.message()));
    }
  } else if (!contents.calls.empty() || !contents.setups.empty()) {
    auto shared = std::make_shared<Contents>(std::move(contents));
    Job::start(comms, [shared] { return run(*shared); });
    result = Status(StatusCode::kInProgress, "");
  }
  for (const auto& what : last) what();
  return result;
}

ncclResult_t report_in_group(const Status& s, Comm* comm) {
  Group& group = Group::mine();
  if (!s.ok() && s.code() != StatusCode::kInProgress) group.fail(s);
  return comm != nullptr ? report(s, comm) : report(s, group.ended_version());
}

Status Group::simulate(double* forecast) {
  if (!open()) return unsupported("ncclGroupSimulateEnd without ncclGroupStart");
  if (--depth_ > 0) return {};
  const Status error = std::exchange(error_, Status());
  Contents contents = take();
  withdraw(contents.setups);
  for (const auto& what : contents.last) what();
  RONDO_TRY(error);
  *forecast = 0;
  for (const PendingCall& c : contents.calls) {
    RONDO_TRY_ASSIGN(const double us, forecast_us(c));
    *forecast += us;
  }
  return {};
}

}  // namespace rondo::nccl
