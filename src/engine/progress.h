// ProgressThread: drives a queue's asynchronous operations while no caller waits for them.
//
// It sleeps while nothing is outstanding, and leaves the driver role to a waiting thread. Made with the first
// asynchronous operation, one per communicator. With a binding it runs on the bound CPUs, as far as the thread that
// makes it may run there. Thread safety: kick() from any thread; the destructor joins.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "base/thread.h"
#include "engine/queue.h"
#include "topology/binding.h"

namespace rondo {

class ProgressThread final : public QueueHelper {
 public:
  /// Errors: as Thread::start.
  static Expected<std::unique_ptr<ProgressThread>> create(OperationQueue& queue,
                                                          const std::optional<Binding>& binding = {});
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;
  /// Call after an operation was admitted, or after a waiting thread left with operations outstanding.
  void kick() override;

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
