// Callbacks: runs functions of the application on a thread of its own, one after the other. The thread that posts one
// may hold locks, or the driver role of a communicator. The thread of the callbacks holds nothing, so a function may
// make calls of rondo and wait for them.
//
// The process has one object, of_this_process<Callbacks>(). Its thread runs until the process ends.
//
// Thread safety: any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "rondo/status.h"

namespace rondo {

class Callbacks {
 public:
  /// Starts the thread, unless it runs. Call it before the first post(). Errors: those of Thread::start.
  Status start();
  void post(std::function<void()> fn);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> waiting_;
  bool runs_ = false;
};

}  // namespace rondo
