// Thread: a thread whose start can fail. std::thread throws on failure, which would end the process.
//
// Thread safety: belongs to one thread at a time. Join or detach it before destruction, as std::thread.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

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
  bool joinable() const { return thread_.has_value(); }
  void join();
  void detach();

 private:
  std::optional<pthread_t> thread_;
};

/// Runs task(0) .. task(num - 1) at the same time: the first on this thread, the others on threads of their own. Returns
/// the first error, also that of a thread that cannot be started (`what`).
Status run_concurrently(std::string_view what, size_t num, const std::function<Status(size_t)>& task);

}  // namespace rondo
