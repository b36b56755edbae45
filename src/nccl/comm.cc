#include "nccl/comm.h"

#include <cstring>

#include "base/no_cancel.h"
#include "base/thread.h"
#include "bootstrap/unique_id.h"
#include "nccl/memory.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {

void Job::start(const std::vector<std::shared_ptr<Comm>>& comms, std::function<Status()> work) {
  auto end = std::make_shared<std::promise<Status>>();
  const auto job = std::make_shared<const Job>(Job{{comms.begin(), comms.end()}, end->get_future().share()});
  for (const auto& comm : comms) comm->start_job(job);
  Thread thread;
  const Status started = thread.start("a thread of a nonblocking call", [end, work = std::move(work)]() mutable {
    Status result = work();
    work = nullptr;  // frees its captures before the end is visible
    end->set_value(std::move(result));
  });
  if (started.ok()) thread.detach();
  else end->set_value(started);
}

std::shared_ptr<Comm> Comm::create(CommConfig config) {
  auto comm = std::make_shared<Comm>(std::move(config));
  comm->memory = memory_of_process();
  comm->device = current_device();
  comm->handle = process().add(comm);
  return comm;
}

void Comm::become(std::unique_ptr<Communicator> made) {
  owned_ = std::move(made);
  inner_.store(owned_.get(), std::memory_order_release);
}

Status Comm::check_process() const {
  if (made_here) return {};
  const Communicator* made = inner();
  return forked_error(made != nullptr ? fmt::format("rank {}", made->rank()) : "a rank that is being made");
}

Status Comm::async_error() {
  {
    const std::lock_guard guard(mutex_);
    if (job_ != nullptr) {
      if (!job_->done()) return Status(StatusCode::kInProgress, "");
      const Status ended = job_->result.get();
      job_ = nullptr;
      if (!ended.ok()) process().log().warn(ended.to_string());
      if (!ended.ok() && failure_.ok()) failure_ = ended;
    }
    if (revoked.load()) return {};  // no error: the caller requested it
    if (!failure_.ok()) return failure_;
  }
  Communicator* made = inner();
  if (made == nullptr) return Status(StatusCode::kInProgress, "");
  return made->error();
}

Status Comm::ready() {
  const Status s = async_error();
  if (s.code() == StatusCode::kInProgress)
    return invalid_argument(
        "an earlier call on this communicator is running: call ncclCommGetAsyncError until it does not return "
        "ncclInProgress");
  return s;
}

Status Comm::usable() {
  RONDO_TRY(ready());
  if (revoked.load()) return unsupported("the communicator was revoked: split, shrink or destroy it");
  if (suspended.load()) return unsupported("the communicator is suspended: ncclCommResume first");
  if (finalized.load()) return invalid_argument("the communicator was finalized: destroy it");
  return {};
}

void Comm::note_error(const std::string& text) {
  if (!made_here) return;  // another thread may have held the mutex
  const std::lock_guard guard(mutex_);
  last_error_ = text;
}

std::string Comm::last_error() const {
  const std::lock_guard guard(mutex_);
  return last_error_;
}

void Comm::start_job(std::shared_ptr<const Job> started) {
  const std::lock_guard guard(mutex_);
  job_ = std::move(started);
}

std::shared_ptr<const Job> Comm::job() {
  const std::lock_guard guard(mutex_);
  return job_;
}

void Comm::wait_for_job(std::optional<std::chrono::seconds> most) {
  const NoCancel no_cancel;
  const auto running = job();
  if (running == nullptr) return;
  if (most) (void)running->result.wait_for(*most);
  else running->result.wait();
}

void Comm::abort() {
  const auto abort_one = [](Comm& comm) {
    comm.token.raise();
    if (Communicator* made = comm.inner()) made->abort();
  };
  abort_one(*this);
  if (const auto running = job())
    for (const auto& other : running->comms)
      if (const auto comm = other.lock()) abort_one(*comm);
}

UniqueId rondo_id(const ncclUniqueId& id) {
  UniqueId own;
  static_assert(sizeof own.bytes == sizeof id.internal);
  std::memcpy(own.bytes, id.internal, sizeof own.bytes);
  return own;
}

uint64_t hash_of_id(const UniqueId& id) { return fnv1a({id.bytes, sizeof id.bytes}); }

uint64_t hash_of_child(uint64_t parent, uint64_t nth, int colour) {
  const uint64_t parts[] = {parent, nth, static_cast<uint64_t>(colour)};
  return fnv1a({reinterpret_cast<const char*>(parts), sizeof parts});
}

void publish(ncclComm_t* to, ncclComm_t handle) { std::atomic_ref(*to).store(handle, std::memory_order_release); }

Expected<std::shared_ptr<Comm>> find_comm(ncclComm_t handle) {
  if (handle == nullptr) return null_argument("comm");
  if (auto comm = process().find(handle)) {
    RONDO_TRY(comm->check_process());
    return comm;
  }
  return invalid_argument("comm {} is not a communicator of this process, or was already destroyed or aborted",
                          static_cast<const void*>(handle));
}

}  // namespace rondo::nccl
