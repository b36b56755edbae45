#include "nccl/job.h"

#include "base/no_cancel.h"
#include "base/thread.h"
#include "nccl/comm.h"

namespace rondo::nccl {

void Job::start(std::vector<std::shared_ptr<Comm>> comms, std::function<Status()> work) {
  auto job = std::make_shared<Job>();
  job->comms_ = std::move(comms);
  for (const auto& comm : job->comms_) comm->start_job(job);
  Thread thread;
  const Status started = thread.start("a thread of a nonblocking call", [job, work = std::move(work)]() mutable {
    Status result = work();
    work = nullptr;  // frees its captures before the end is visible
    job->finish(std::move(result));
  });
  if (started.ok()) thread.detach();
  else job->finish(started);
}

void Job::finish(Status result) {
  std::vector<std::shared_ptr<Comm>> held;  // freed without the lock, because this thread may be the last owner
  const std::lock_guard guard(mutex_);
  result_ = std::move(result);
  done_ = true;
  held.swap(comms_);
  ended_.notify_all();
}

bool Job::done(Status* result) const {
  const std::lock_guard guard(mutex_);
  if (done_) *result = result_;
  return done_;
}

void Job::wait() const {
  const NoCancel no_cancel;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_; });
}

std::vector<std::shared_ptr<Comm>> Job::comms() const {
  const std::lock_guard guard(mutex_);
  return comms_;
}

}  // namespace rondo::nccl
