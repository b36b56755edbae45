// Job: the work of a group of nonblocking calls, on its own thread. Thread safety: any thread.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

struct Job {
  std::vector<std::weak_ptr<Comm>> comms;  // the work owns them until it is done
  std::shared_future<Status> result;

  bool done() const { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  /// Runs `work` on a new thread. The job is stored in its communicators before it begins.
  static void start(const std::vector<std::shared_ptr<Comm>>& comms, std::function<Status()> work);
};

}  // namespace rondo::nccl
