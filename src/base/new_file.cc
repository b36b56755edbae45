#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/limits.h"

namespace rondo {
namespace {

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

int create_new_file(const std::string& path, unsigned mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const int fd = ::open(path.c_str(), kFlags, mode);
  if (fd >= 0 || errno != EEXIST) return fd;
  return ::unlink(path.c_str()) == 0 ? ::open(path.c_str(), kFlags, mode) : -1;
}

Status write_whole_file(const std::string& path, std::span<const std::string_view> pieces, unsigned mode) {
  const NoSizeSignal no_signal;
  const std::string beside = fmt::format("{}.tmp.{}", path, getpid());
  const int fd = create_new_file(beside, mode);
  int error = fd < 0 ? errno : 0;
  if (fd < 0) return make_error(code_of(error), "{}: cannot be created: {}", beside, errno_reason(error));
  for (const std::string_view piece : pieces)
    if (error == 0 && !write_all(fd, piece)) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) == 0) return {};
  if (error == 0) error = errno;
  ::unlink(beside.c_str());
  return make_error(code_of(error), "{}: cannot be written: {}", path, errno_reason(error));
}

}  // namespace rondo
