#include "base/limits.h"

#include <fmt/format.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cerrno>

namespace rondo {
namespace {

std::string now(__rlimit_resource_t which, std::string_view unit) {
  rlimit limit{};
  if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "now unlimited";
  return fmt::format("now {}{}", limit.rlim_cur, unit);
}

sigset_t size_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

}  // namespace

std::string limit_of(int error) {
  switch (error) {
    case EFBIG: return fmt::format("raise the limit on file sizes (ulimit -f, {})", now(RLIMIT_FSIZE, " bytes"));
    case EMFILE: return fmt::format("raise the limit on open files (ulimit -n, {})", now(RLIMIT_NOFILE, ""));
    case ENFILE: return "raise the system's limit on open files (sysctl fs.file-max)";
    case EAGAIN:
      return fmt::format("raise the limit on threads (ulimit -u, {}; a container's pids limit)", now(RLIMIT_NPROC, ""));
    default: return "";
  }
}

std::string errno_reason(int error) {
  const std::string text = fmt::format("{} (errno {})", strerrordesc_np(error), error), limit = limit_of(error);
  return limit.empty() ? text : fmt::format("{}: {}", text, limit);
}

StatusCode code_of(int error) { return limit_of(error).empty() ? StatusCode::kSystem : StatusCode::kExhausted; }

NoSizeSignal::NoSizeSignal() {
  sigset_t pending;
  const sigset_t set = size_signal();
  was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

NoSizeSignal::~NoSizeSignal() {
  const int kept = errno;
  const sigset_t set = size_signal();
  const timespec at_once{};
  if (!was_pending_) (void)sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = kept;
}

}  // namespace rondo
