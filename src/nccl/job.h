// Job: the work of one group that a nonblocking call left behind, on a thread of its own.
//
// Thread safety: any thread.
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
  /// Runs `work` on a new thread. comms: whom it works on; they are told of the job before it begins.
  static void start(std::vector<std::shared_ptr<Comm>> comms, std::function<Status()> work);

  /// True when it is done; *result then says how it ended.
  bool done(Status* result) const;
  void wait() const;
  /// Whom it works on; empty when it is done.
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
