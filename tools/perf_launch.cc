#include "perf_launch.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "launch/launch.h"
#include "rondo/rondo.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kLaunchedRank = "RONDO_PERF_LAUNCHED";
constexpr auto kGrace = std::chrono::seconds(10);

std::vector<std::string> environment_of(int rank, int nranks, const std::string& id_hex) {
  std::vector<std::string> env{fmt::format("{}=1", kLaunchedRank), fmt::format("RONDO_RANK={}", rank),
                               fmt::format("RONDO_NRANKS={}", nranks), "RONDO_UNIQUE_ID=" + id_hex};
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry(*e), name = entry.substr(0, entry.find('=') + 1);
    const bool ours =
        std::any_of(env.begin(), env.begin() + 4, [&](const std::string& v) { return v.starts_with(name); });
    if (!ours) env.push_back(entry);
  }
  return env;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> p;
  for (std::string& s : strings) p.push_back(s.data());
  p.push_back(nullptr);
  return p;
}

pid_t start(std::vector<std::string> args, std::vector<std::string> env) {
  std::vector<char*> argv = pointers(args), envp = pointers(env);
  const pid_t parent = getpid(), pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the prctl call
  execve("/proc/self/exe", argv.data(), envp.data());
  _exit(127);
}

/// Waits for the children and reports their exits.
class Family {
 public:
  explicit Family(std::vector<pid_t> pids) : pids_(std::move(pids)), alive_(pids_.size()) {}

  int wait() {
    while (alive_ > 0) {
      int how = 0;
      const pid_t pid = waitpid(-1, &how, failed_ ? WNOHANG : 0);
      if (pid > 0) {
        ended(pid, how);
      } else if (pid < 0 && errno != EINTR) {
        break;
      } else if (failed_ && Clock::now() > give_up_) {
        end_all();
      } else if (pid == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return failed_ ? 1 : 0;
  }
  void end_all() {
    for (pid_t pid : pids_)
      if (pid > 0) kill(pid, SIGKILL);
    ended_by_us_ = true;
  }

 private:
  void ended(pid_t pid, int how) {
    const auto at = std::find(pids_.begin(), pids_.end(), pid);
    if (at == pids_.end()) return;
    const auto rank = at - pids_.begin();
    *at = -1;
    --alive_;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return;
    if (!failed_) give_up_ = Clock::now() + kGrace;
    failed_ = true;
    if (WIFSIGNALED(how))
      std::fprintf(stderr, "rondo perf: rank %td (pid %d) was killed by signal %d (%s)%s\n", rank, pid, WTERMSIG(how),
                   strsignal(WTERMSIG(how)), ended_by_us_ ? " by its parent, since another rank failed" : "");
    else if (WEXITSTATUS(how) != 1)  // 1: the rank has printed its error
      std::fprintf(stderr, "rondo perf: rank %td (pid %d) ended with status %d\n", rank, pid, WEXITSTATUS(how));
  }

  std::vector<pid_t> pids_;  // by rank; -1: ended
  size_t alive_;
  bool failed_ = false, ended_by_us_ = false;
  Clock::time_point give_up_;
};

}  // namespace

bool is_launched_rank() { return std::getenv(kLaunchedRank) != nullptr; }

int launch_processes(int nranks, const std::vector<std::string>& args) {
  rondo_unique_id id;
  if (rondo_get_unique_id(&id) != RONDO_OK) {
    std::fprintf(stderr, "rondo perf: %s\n", rondo_last_error(nullptr));
    return 1;
  }
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < nranks; ++rank) {
    const pid_t pid = start(args, environment_of(rank, nranks, unique_id_to_hex(id)));
    if (pid < 0) {
      std::fprintf(stderr, "rondo perf: cannot start rank %d: %s\n", rank, std::strerror(errno));
      Family(pids).end_all();
      return 1;
    }
    pids.push_back(pid);
  }
  return Family(std::move(pids)).wait();
}

}  // namespace rondo::tools
