// Writes flight records of all communicators of this process on the signal that RONDO_FLIGHT names.
//
// A signal handler may do very little. Therefore it posts a semaphore, and a separate thread does the rest. Handler
// and thread exist only while a communicator needs them. Afterwards the previous handler is restored.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/thread.h"
#include "engine/tracing.h"

namespace rondo {
namespace {

// Posted by the handler. Never destroyed, because a handler may be running. Each watcher initialises it again: posts of
// an earlier watcher, or of the process that forked this one, count for nobody.
sem_t signalled;

void on_signal(int) {
  const int saved = errno;
  sem_post(&signalled);
  errno = saved;
}

// The thread and its communicators. Exists while any is registered.
class Watcher {
 public:
  static Expected<std::unique_ptr<Watcher>> create(int signal) {
    sem_init(&signalled, 0, 0);
    auto watcher = std::unique_ptr<Watcher>(new Watcher(signal));
    RONDO_TRY(watcher->thread_.start("the thread of RONDO_FLIGHT's signal", [w = watcher.get()] { w->loop(); }));
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, &watcher->before_) != 0)
      return make_error(StatusCode::kSystem, "signal {}: {}", signal, std::strerror(errno));
    watcher->installed_ = true;
    return watcher;
  }
  ~Watcher() {
    if (installed_) sigaction(signal_, &before_, nullptr);
    stop_.store(true);
    sem_post(&signalled);
    if (thread_.joinable()) thread_.join();
  }
  int signal() const { return signal_; }

  void add(Tracing& t) {
    const std::lock_guard lock(mutex_);
    watched_.push_back(&t);
  }
  /// Returns true if none is left.
  bool remove(Tracing& t) {
    const std::lock_guard lock(mutex_);
    std::erase(watched_, &t);
    return watched_.empty();
  }

 private:
  explicit Watcher(int signal) : signal_(signal) {}

  void loop() {
    while (!stop_.load()) {
      if (sem_wait(&signalled) != 0 || stop_.load()) continue;
      while (sem_trywait(&signalled) == 0) continue;  // one record for several signals
      const std::lock_guard lock(mutex_);
      for (Tracing* t : watched_)
        if (const Status s = t->write_flight(t->settings().flight_directory, "signal"); !s.ok())
          std::fprintf(stderr, "rondo: %s\n", s.to_string().c_str());
    }
  }

  const int signal_;
  struct sigaction before_{};
  bool installed_ = false;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Tracing*> watched_;
  Thread thread_;
};

// Never destroyed, since communicators may outlive main(). A forked child has no such thread and ignores the signal. A
// communicator that it makes starts a new one.
struct Registry {
  std::mutex mutex;
  std::unique_ptr<Watcher> watcher;
};
Registry& registry() {
  static Registry* r = [] {
    auto* made = new Registry;
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     (void)registry().watcher.release();
                     registry().mutex.unlock();
                   });
    return made;
  }();
  return *r;
}

}  // namespace

Status watch_flight_signal(Tracing& tracing) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const int signal = tracing.settings().flight_signal;
  if (r.watcher == nullptr) {
    RONDO_TRY_ASSIGN(r.watcher, Watcher::create(signal));
  } else if (r.watcher->signal() != signal) {
    return invalid_argument(
        "RONDO_FLIGHT named signal {} when this process made its first communicator and is {} now: a process has only "
        "one",
        r.watcher->signal(), signal);
  }
  r.watcher->add(tracing);
  return {};
}

void ignore_flight_signal(Tracing& tracing) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.watcher != nullptr && r.watcher->remove(tracing)) r.watcher.reset();
}

}  // namespace rondo
