// Callbacks: runs functions of the application on a thread of its own, one after the other. The thread that posts one
// may hold locks, or the driver role of a communicator. The thread of the callbacks holds nothing, so a function may
// make calls of rondo and wait for them.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>

#include "rondo/status.h"

namespace rondo {

class Callbacks {
 public:
  Callbacks();
  /// The thread still runs the posted functions, and ends then.
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;
  /// Starts the thread, unless it runs. Call it before the first post(). Errors: those of Thread::start.
  Status start();
  /// Has no effect in a forked child, which has no thread of its parent.
  void post(std::function<void()> fn);

 private:
  struct State;
  static void run(State& state);
  const std::shared_ptr<State> state_;  // the thread shares it
};

}  // namespace rondo
