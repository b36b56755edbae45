#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace rondo {

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    if (this != &o) reset(std::exchange(o.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  /// Shuts the connection or listening socket down, also for copies that a fork left in other processes, then closes
  /// it.
  void shut() {
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
    reset();
  }

 private:
  int fd_ = -1;
};

}  // namespace rondo
