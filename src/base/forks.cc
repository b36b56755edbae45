#include "base/forks.h"

#include <openssl/crypto.h>
#include <pthread.h>

#include <memory>

#include "base/error.h"

namespace rondo {

std::atomic<uint32_t> number_of_forks{0};

namespace {

std::shared_mutex forks_allowed;  // a fork holds it exclusively

void after_fork_in_child() {
  std::construct_at(&forks_allowed);  // a shared_mutex identifies its owner by a thread id, which differs here
  number_of_forks.fetch_add(1, std::memory_order_relaxed);
}

// Registered when the library is loaded: handlers of the application run later and find its communicators unusable.
[[maybe_unused]] const int registered =
    pthread_atfork([] { forks_allowed.lock(); }, [] { forks_allowed.unlock(); }, after_fork_in_child);

}  // namespace

std::shared_lock<std::shared_mutex> delay_forks() {
  struct ThreadEnd {  // OpenSSL takes locks at the end of a thread too
    ~ThreadEnd() {
      const std::shared_lock lock(forks_allowed);
      OPENSSL_thread_stop();
    }
  };
  thread_local const ThreadEnd at_end;
  return std::shared_lock(forks_allowed);
}

Status forked_error(std::string_view who) {
  return unsupported(
      "{}: this process was forked from the one that made the communicator, and only the parent can "
      "use it: make a new communicator here, or fork before making any",
      who);
}

}  // namespace rondo
