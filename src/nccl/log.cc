#include "nccl/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/no_cancel.h"

namespace rondo::nccl {
namespace {

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

// Follows a link only if the user or the system owns it, as for /dev/stdout: names with %h and %p can be guessed.
int open_log(const std::string& file) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  const int fd = ::open(file.c_str(), kFlags | O_NOFOLLOW, 0644);
  struct stat link {};
  if (fd >= 0 || errno != ELOOP || ::lstat(file.c_str(), &link) != 0) return fd;
  if (link.st_uid == 0 || link.st_uid == ::geteuid()) return ::open(file.c_str(), kFlags, 0644);
  errno = ELOOP;
  return -1;
}

}  // namespace

std::string expand_file_name(std::string_view pattern) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'h') name += host_name();
    else if (next == 'p') name += std::to_string(::getpid());
    else if (next == '%') name += '%';
    else {
      name += pattern[i];
      continue;
    }
    ++i;
  }
  return name;
}

void Log::configure(LogLevel level, const std::string& file) {
  level_.store(static_cast<int>(level));
  int fd = STDERR_FILENO;
  if (!file.empty() && level != LogLevel::kNone) {
    fd = open_log(file);
    if (fd < 0) {
      fd = STDERR_FILENO;
      always(fmt::format("NCCL_DEBUG_FILE: cannot write {}: {}; the log goes to stderr", file, std::strerror(errno)));
    }
  }
  // The old file stays open, because another thread may be writing to it. Only ncclResetDebugInit adds files.
  fd_.store(fd);
}

void Log::write(LogLevel level, std::string_view name, std::string_view text) {
  if (!has(level)) [[likely]]
    return;
  const NoCancel no_cancel;
  static const std::string host = host_name();
  const std::string line = fmt::format("{}:{}:{} rondo-nccl {}: {}\n", host, ::getpid(), ::gettid(), name, text);
  [[maybe_unused]] const ssize_t written =
      ::write(fd_.load(), line.data(), line.size());  // a full disk is not an error here
}

}  // namespace rondo::nccl
