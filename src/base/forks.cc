#include "base/forks.h"

#include <fmt/format.h>
#include <pthread.h>

namespace rondo {

std::atomic<uint32_t> number_of_forks{0};

namespace {

// Registered when the library is loaded: handlers of the application run later and find its communicators unusable.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { number_of_forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

Status forked_error(std::string_view who) {
  return Status(
      StatusCode::kUnsupported,
      fmt::format("{}: this process was forked from the one that made the communicator, and only the parent can "
                  "use it: make a new communicator here, or fork before making any",
                  who));
}

}  // namespace rondo
