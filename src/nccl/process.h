// Process-wide state: communicators by handle, NCCL_* variables, the log, ncclMemAlloc's memory.
//
// A handle is a number that is never reused, so using the handle of a destroyed communicator is an error, not a crash.
// The object is made at the first call and never destroyed, because programs call NCCL from destructors of static
// objects. Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "nccl/abi.h"
#include "nccl/environment.h"
#include "nccl/log.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

/// The result of ncclGetVersion: 2.32.3.
inline constexpr int kPresentedVersion = 23203;

class Process {
 public:
  Process();

  ncclComm_t add(const std::shared_ptr<Comm>& comm);
  /// nullptr if it does not exist or was removed.
  std::shared_ptr<Comm> find(ncclComm_t handle) const;
  void remove(ncclComm_t handle);

  const Environment& environment() const { return environment_; }
  Log& log() { return log_; }
  /// Reads the log's variables again (ncclResetDebugInit).
  void reset_log();
  /// Logs once the version and the ignored variables.
  void announce();

  void note_error(const std::string& text);
  std::string last_error() const;

  /// Numbers reduction operators process-wide, so that a handle is invalid on any other communicator.
  int next_operator();

  /// ncclMemAlloc, ncclMemFree (memory.cc). `owner` frees the memory.
  void own_memory(void* pointer, std::shared_ptr<void> owner);
  /// Returns false if the process does not own it.
  bool free_memory(void* pointer);

  /// Called around a fork.
  void lock();
  void unlock();
  void renew_locks();  // instead of unlock, in the child

 private:
  Environment environment_;
  Log log_;
  mutable std::shared_mutex handles_mutex_;
  std::unordered_map<uintptr_t, std::shared_ptr<Comm>> handles_;
  uintptr_t next_handle_ = 0x1000;  // never NULL, and unlikely to be passed by mistake
  std::once_flag announced_;
  mutable std::mutex mutex_;
  std::string last_error_;
  std::unordered_map<void*, std::shared_ptr<void>> memory_;
  std::atomic<uint32_t> next_operator_{0};
};

Process& process();

}  // namespace rondo::nccl
