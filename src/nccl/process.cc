#include "nccl/process.h"

#include <fmt/format.h>
#include <pthread.h>

#include <memory>

#include "nccl/comm.h"
#include "rondo/communicator.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo::nccl {

Process& process() {
  static Process* const the = [] {
    auto* made = new Process;
    // Otherwise a child may find the locks held by a thread that it does not have.
    pthread_atfork([] { process().lock(); }, [] { process().unlock(); }, [] { process().renew_locks(); });
    return made;
  }();
  return *the;
}

Process::Process() : environment_(read_environment(environ)) {
  log_.configure(environment_.level, environment_.log_file);
  if (const Status s = set_default_settings(environment_.settings, "NCCL_*"); !s.ok())
    environment_.ignored.push_back({"NCCL_*", std::string(s.message())});
}

void Process::reset_log() {
  const Environment now = read_environment(environ);
  log_.configure(now.level, now.log_file);
}

void Process::announce() {
  std::call_once(announced_, [this] {
    log_.version(fmt::format("libnccl.so.2 of rondo {}, which presents NCCL {}", RONDO_VERSION, kPresentedVersion));
    for (const IgnoredVariable& v : environment_.ignored) log_.always(fmt::format("{} is ignored: {}", v.name, v.why));
  });
}

void Process::lock() {
  handles_mutex_.lock();
  mutex_.lock();
}

void Process::unlock() {
  mutex_.unlock();
  handles_mutex_.unlock();
}

// A shared_mutex identifies its owner by a thread id, which differs in the child.
void Process::renew_locks() {
  std::construct_at(&mutex_);
  std::construct_at(&handles_mutex_);
}

ncclComm_t Process::add(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard guard(handles_mutex_);
  const uintptr_t handle = next_handle_++;
  handles_.emplace(handle, comm);
  return reinterpret_cast<ncclComm_t>(handle);
}

std::shared_ptr<Comm> Process::find(ncclComm_t handle) const {
  const std::shared_lock guard(handles_mutex_);
  const auto at = handles_.find(reinterpret_cast<uintptr_t>(handle));
  return at != handles_.end() ? at->second : nullptr;
}

void Process::remove(ncclComm_t handle) {
  std::shared_ptr<Comm> last;  // may be the last owner: its communicator ends outside of the lock
  const std::lock_guard guard(handles_mutex_);
  const auto at = handles_.find(reinterpret_cast<uintptr_t>(handle));
  if (at == handles_.end()) return;
  last = std::move(at->second);
  handles_.erase(at);
}

void Process::note_error(const std::string& text) {
  const std::lock_guard guard(mutex_);
  last_error_ = text;
}

std::string Process::last_error() const {
  const std::lock_guard guard(mutex_);
  return last_error_;
}

int Process::next_operator() {
  constexpr uint32_t kHandles = static_cast<uint32_t>(ncclMaxRedOp) - ncclNumOps;
  return static_cast<int>(ncclNumOps + next_operator_.fetch_add(1) % kHandles);
}

void Process::own_memory(void* pointer, std::shared_ptr<void> owner) {
  const std::lock_guard guard(mutex_);
  memory_.emplace(pointer, std::move(owner));
}

bool Process::free_memory(void* pointer) {
  decltype(memory_)::node_type last;  // freed outside of the lock
  const std::lock_guard guard(mutex_);
  last = memory_.extract(pointer);
  return !last.empty();
}

}  // namespace rondo::nccl
