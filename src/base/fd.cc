#include "base/fd.h"

#include <sys/socket.h>
#include <unistd.h>

namespace rondo {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void Fd::shut() {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  reset();
}

}  // namespace rondo
