// Thread: a thread whose start can fail. std::thread throws on failure, which would end the process.
//
// A forked child has no threads of its parent: there a Thread is not joinable.
//
// Thread safety: belongs to one thread at a time. Join or detach it before destruction, as std::thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

#include "base/forks.h"
#include "rondo/status.h"

namespace rondo {

class Thread {
 public:
  Thread() = default;
  ~Thread() { RONDO_CHECK(!joinable()); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  /// `what`: "the progress thread". Errors: kExhausted naming the limit, kSystem.
  Status start(std::string_view what, std::function<void()> body);
  bool joinable() const { return started_ && started_->here; }
  void join();
  void detach();

 private:
  struct Started {
    pthread_t thread;
    MadeHere here = {};
  };
  std::optional<Started> started_;
};

/// While it lives, no signal is handled on this thread. A thread that is started meanwhile inherits this, so that the
/// application's handlers never run on it.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

/// Runs task(0) .. task(num - 1) at the same time: the first on this thread, the others on threads of their own.
/// Returns the first error, also that of a thread that cannot be started (`what`).
Status run_concurrently(std::string_view what, size_t num, const std::function<Status(size_t)>& task);

}  // namespace rondo
