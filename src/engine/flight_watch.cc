#include "engine/flight_watch.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
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

std::atomic<int> signalled_fd{-1};  // for the handler

void on_signal(int) {
  const int saved = errno;
  const uint64_t one = 1;
  const ssize_t written = write(signalled_fd.load(std::memory_order_relaxed), &one, sizeof one);
  (void)written;  // if the counter is full, the thread will look anyway
  errno = saved;
}

// The thread and its communicators. Exists while any is registered.
class Watcher {
 public:
  static Expected<std::unique_ptr<Watcher>> create(int signal) {
    const int fd = eventfd(0, EFD_CLOEXEC);
    if (fd < 0) return make_error(StatusCode::kSystem, "eventfd: {}", std::strerror(errno));
    signalled_fd.store(fd);
    auto watcher = std::unique_ptr<Watcher>(new Watcher(signal, fd));
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
    const uint64_t one = 1;
    while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) continue;
    if (thread_.joinable()) thread_.join();
    signalled_fd.store(-1);
    close(fd_);
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
  Watcher(int signal, int fd) : signal_(signal), fd_(fd) {}

  void loop() {
    for (uint64_t count; !stop_.load();) {
      if (read(fd_, &count, sizeof count) != sizeof count || stop_.load()) continue;
      const std::lock_guard lock(mutex_);
      for (Tracing* t : watched_)
        if (const Status s = t->write_flight(t->settings().flight_directory, "signal"); !s.ok())
          std::fprintf(stderr, "rondo: %s\n", s.to_string().c_str());
    }
  }

  const int signal_, fd_;
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
                     signalled_fd.store(-1);
                     (void)registry().watcher.release();
                     registry().mutex.unlock();
                   });
    return made;
  }();
  return *r;
}

}  // namespace

Status FlightWatch::add(Tracing& tracing) {
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

void FlightWatch::remove(Tracing& tracing) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.watcher != nullptr && r.watcher->remove(tracing)) r.watcher.reset();
}

}  // namespace rondo
