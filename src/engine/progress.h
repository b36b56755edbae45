// ProgressThread: drives a queue's asynchronous operations while no caller waits for them.
//
// It sleeps while nothing is outstanding. It leaves the driver role to a thread that waits. A communicator has one. The
// first asynchronous operation makes it. With a binding it runs on the bound CPUs, as far as the thread that makes it
// may run there. Thread safety: kick() from any thread. The destructor joins the thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "base/thread.h"
#include "engine/queue.h"
#include "topology/binding.h"

namespace rondo {

class ProgressThread {
 public:
  /// Starts the thread. Errors: those of Thread::start.
  static Expected<std::unique_ptr<ProgressThread>> create(OperationQueue& queue,
                                                          const std::optional<Binding>& binding = {});
  ~ProgressThread();
  /// Wakes the thread. Call it when an operation was admitted, or when a waiting thread has left and operations are
  /// outstanding.
  void kick();

 private:
  ProgressThread(OperationQueue& queue, const std::optional<Binding>& binding) : queue_(queue), binding_(binding) {}
  void loop();
  void bind();
  void drive_while_needed();
  OperationQueue& queue_;
  const std::optional<Binding> binding_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::atomic<bool> stop_{false};
  Thread thread_;
};

}  // namespace rondo
