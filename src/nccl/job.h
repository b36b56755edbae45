// Job: the work of a group of nonblocking calls, on its own thread. Thread safety: any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

class Job {
 public:
  /// Runs `work` on a new thread. comms: its communicators. The job is stored in them before it begins.
  static void start(std::vector<std::shared_ptr<Comm>> comms, std::function<Status()> work);

  /// Returns true when the job is done, with its result in *result.
  bool done(Status* result) const;
  void wait() const;
  /// Its communicators; empty when it is done.
  std::vector<std::shared_ptr<Comm>> comms() const;

 private:
  void finish(Status result);
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::vector<std::shared_ptr<Comm>> comms_;
  bool done_ = false;
  Status result_;
};

}  // namespace rondo::nccl
