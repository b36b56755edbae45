#include "base/process_name.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/fd.h"
#include "base/read_file.h"

namespace rondo {
namespace {

// 0 if there is no such process, or no /proc.
uint64_t start_ticks_of(int pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
  if (!text) return 0;
  // "pid (name) state ppid ...": the name may contain anything, therefore count from its end; state is field 3.
  const char* at = std::strrchr(text->c_str(), ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at != nullptr ? std::strtoull(at, nullptr, 10) : 0;
}

}  // namespace

uint64_t this_pid_namespace() {
  struct stat ns {};
  return stat("/proc/self/ns/pid", &ns) == 0 ? ns.st_ino : 0;
}

ProcessName ProcessName::self() { return {getpid(), start_ticks_of(getpid()), this_pid_namespace()}; }

bool ProcessName::ended() const {
  if (pid <= 0 || start_ticks == 0 || pid_namespace == 0 || pid_namespace != this_pid_namespace()) return false;
  // Open the descriptor first: it stays with the process that had the pid then, even if the pid is reused between the
  // two checks.
  const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno == ESRCH;
  pollfd exited{fd.get(), POLLIN, 0};
  const uint64_t start = start_ticks_of(pid);
  return (start != 0 && start != start_ticks) || (poll(&exited, 1, 0) == 1 && (exited.revents & POLLIN) != 0);
}

}  // namespace rondo
