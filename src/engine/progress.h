// ProgressThread: drives asynchronous operations while no caller waits for them.
//
// A process has one for all its communicators. Ranks that init_all makes as threads have one each, and share it with
// the communicators that are made of theirs. The first asynchronous operation starts it. It sleeps while nothing is
// outstanding, and leaves the driver role to a thread that waits.
//
// Thread safety: any thread. The destructor joins the thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread.h"
#include "engine/queue.h"
#include "topology/binding.h"

namespace rondo {

class ProgressThread {
 public:
  /// Returns the process's object. It ends with its last user.
  static std::shared_ptr<ProgressThread> of_process();
  ~ProgressThread();
  /// Lets the thread drive the queue. If it does not run yet, starts it, on the CPUs of `binding` as far as the calling
  /// thread may run there. Errors: those of Thread::start.
  Status add(OperationQueue& queue, const std::optional<Binding>& binding);
  /// Returns when the thread no longer uses the queue.
  void remove(OperationQueue& queue);
  /// Wakes the thread. Call it when an operation was admitted, or when a waiting thread has left and operations are
  /// outstanding.
  void kick(OperationQueue& queue);

 private:
  bool drives(const OperationQueue& queue) const;
  void loop();
  void drive();

  std::mutex mutex_;
  std::condition_variable work_, left_;
  std::vector<OperationQueue*> queues_;
  std::vector<OperationQueue*> driven_;  // those that needed help when drive() began; does not change while it runs
  std::atomic<bool> changed_{false};     // drive() must return, because it needs another `driven_`
  bool stop_ = false;
  Thread thread_;
};

}  // namespace rondo
