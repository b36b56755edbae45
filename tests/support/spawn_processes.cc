// Ranks as forked processes: children report over pipes; the parent collects reports, kills late children, and reaps.
//
// A record on a report pipe is a kind byte, a 32-bit length and text. 'F': a failed expectation. 'E': the function
// returned. A pipe that ends without 'E' belongs to a rank that was killed or exited.
#include "support/spawn_processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <sstream>

#include "support/shared.h"
#include "support/spawn.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RONDO_TEST_LEAKS 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define RONDO_TEST_LEAKS 1
#endif
#ifdef RONDO_TEST_LEAKS
#include <sanitizer/lsan_interface.h>
#endif
extern "C" void __gcov_dump() __attribute__((weak));  // coverage builds: _exit does not write counters

namespace rondo::testing {
namespace {

bool write_all(int fd, const void* data, size_t num_bytes) {
  const char* p = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t n = write(fd, p, num_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    num_bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t num_bytes) {
  char* p = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t n = read(fd, p, num_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    num_bytes -= static_cast<size_t>(n);
  }
  return true;
}

// The child's end of a report pipe. Safe from any thread.
class Reporter {
 public:
  explicit Reporter(int fd) : fd_(fd) {}
  void send(char kind, const std::string& text) {
    const auto num_bytes = static_cast<uint32_t>(text.size());
    std::string record(1, kind);
    record.append(reinterpret_cast<const char*>(&num_bytes), sizeof(num_bytes)).append(text);
    const std::lock_guard<std::mutex> lock(mutex_);
    write_all(fd_, record.data(), record.size());
  }

 private:
  std::mutex mutex_;
  int fd_;
};

// Replaces GoogleTest's printer in a child: failures go to the parent, which prints them once.
class Forwarder : public ::testing::EmptyTestEventListener {
 public:
  explicit Forwarder(Reporter& reporter) : reporter_(reporter) {}
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (!part.failed()) return;
    std::ostringstream text;
    text << (part.file_name() ? part.file_name() : "?") << ":" << part.line_number() << "\n" << part.message();
    reporter_.send('F', text.str());
  }

 private:
  Reporter& reporter_;
};

[[noreturn]] void child_main(Rank rank, int report_fd, pid_t parent, const std::function<Status(Rank)>& fn,
                             const SpawnOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);                                 // the parent died before prctl
  alarm(static_cast<unsigned>(std::ceil(options.deadline_s)) + 10);  // in case the parent's own deadline fails
  Reporter reporter(report_fd);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new Forwarder(reporter));
  const Status status = fn(rank);
  if (!status.ok()) reporter.send('F', status.to_string());
#ifdef RONDO_TEST_LEAKS
  if (__lsan_do_recoverable_leak_check() != 0) reporter.send('F', "leaked memory (see stderr)");
#endif
  reporter.send('E', "");
  if (__gcov_dump) __gcov_dump();
  std::fflush(nullptr);
  _exit(0);
}

// The parent's side of one child.
struct Child {
  pid_t pid = -1;
  int report_fd = -1;
  bool reaped = false;
  std::string buffer;
};

// Takes complete records from the buffer.
void take_records(Child& child, RankResult& result) {
  constexpr size_t kHeader = 1 + sizeof(uint32_t);
  while (child.buffer.size() >= kHeader) {
    uint32_t num_bytes;
    std::memcpy(&num_bytes, child.buffer.data() + 1, sizeof(num_bytes));
    if (child.buffer.size() < kHeader + num_bytes) return;
    if (child.buffer[0] == 'E') result.end = RankResult::End::kReturned;
    if (child.buffer[0] == 'F') result.failures.push_back(child.buffer.substr(kHeader, num_bytes));
    child.buffer.erase(0, kHeader + num_bytes);
  }
}

// Reads available data. Closes the pipe at its end.
void read_report(Child& child, RankResult& result) {
  char bytes[4096];
  const ssize_t n = read(child.report_fd, bytes, sizeof(bytes));
  if (n < 0 && errno == EINTR) return;
  if (n > 0) {
    child.buffer.append(bytes, static_cast<size_t>(n));
    take_records(child, result);
    return;
  }
  close(child.report_fd);
  child.report_fd = -1;
}

// Runs until all pipes have ended or the deadline has passed.
void collect(std::vector<Child>& children, std::vector<RankResult>& results, double end_s) {
  while (true) {
    std::vector<pollfd> fds;
    for (const Child& c : children)
      if (c.report_fd >= 0) fds.push_back({c.report_fd, POLLIN, 0});
    const double left_s = end_s - now_s();
    if (fds.empty() || left_s <= 0) return;
    if (poll(fds.data(), fds.size(), static_cast<int>(left_s * 1e3) + 1) <= 0) continue;
    for (const pollfd& p : fds)
      for (size_t r = 0; p.revents != 0 && r < children.size(); ++r)
        if (children[r].report_fd == p.fd) read_report(children[r], results[r]);
  }
}

// Kills running children and reaps all. A child whose pipe has ended is about to exit.
void reap(std::vector<Child>& children, std::vector<RankResult>& results) {
  for (size_t r = 0; r < children.size(); ++r) {
    Child& child = children[r];
    const bool late = child.report_fd >= 0;
    if (late) {
      kill(child.pid, SIGKILL);
      close(child.report_fd);
    }
    int wait_status = 0;
    while (waitpid(child.pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    if (late) {
      results[r].end = RankResult::End::kDeadline;
    } else if (WIFSIGNALED(wait_status)) {
      results[r].end = RankResult::End::kSignalled;
      results[r].signal = WTERMSIG(wait_status);
    } else if (WEXITSTATUS(wait_status) != 0) {
      results[r].failures.push_back("exit status " + std::to_string(WEXITSTATUS(wait_status)));
    }
  }
}

}  // namespace

IdPipes::IdPipes(int nranks) : pipes_(static_cast<size_t>(nranks), {-1, -1}) {
  for (size_t r = 1; r < pipes_.size(); ++r)
    if (pipe(pipes_[r].data()) != 0) std::abort();
}

IdPipes::~IdPipes() { close_all(); }

void IdPipes::close_all() {
  for (auto& ends : pipes_) {
    for (int& fd : ends) {
      if (fd >= 0) close(fd);
      fd = -1;
    }
  }
}

Expected<UniqueId> IdPipes::exchange(Rank rank) {
  UniqueId id{};
  if (rank == 0) {
    RONDO_TRY_ASSIGN(id, Communicator::make_unique_id());
    for (size_t r = 1; r < pipes_.size(); ++r) write_all(pipes_[r][1], &id, sizeof(id));
    close_all();
    return id;
  }
  const int fd = std::exchange(pipes_[static_cast<size_t>(rank)][0], -1);
  close_all();  // the write ends too: if rank 0 dies, the read below ends
  const bool got_id = read_all(fd, &id, sizeof(id));
  close(fd);
  if (!got_id) return Status(StatusCode::kSystem, "rank 0 ended before it had made the unique id");
  return id;
}

std::vector<RankResult> run_processes_bare(int nranks, const std::function<Status(Rank)>& fn,
                                           const SpawnOptions& options) {
  std::vector<RankResult> results(static_cast<size_t>(nranks));
  std::vector<Child> children(static_cast<size_t>(nranks));
  const double end_s = now_s() + options.deadline_s;
  const pid_t parent = getpid();
  std::fflush(nullptr);  // otherwise every child prints it again
  for (Rank r = 0; r < nranks; ++r) {
    Child& child = children[static_cast<size_t>(r)];
    results[static_cast<size_t>(r)].rank = r;
    results[static_cast<size_t>(r)].end = RankResult::End::kExited;  // until it reports otherwise
    int fds[2];
    if (pipe(fds) != 0) std::abort();
    child.pid = fork();
    if (child.pid < 0) std::abort();
    if (child.pid == 0) {
      for (const Child& other : children)
        if (other.report_fd >= 0) close(other.report_fd);
      close(fds[0]);
      child_main(r, fds[1], parent, fn, options);
    }
    close(fds[1]);
    child.report_fd = fds[0];
  }
  if (options.in_parent) {
    std::vector<pid_t> pids;
    for (const Child& child : children) pids.push_back(child.pid);
    options.in_parent(pids);
  }
  collect(children, results, end_s);
  reap(children, results);
  return results;
}

}  // namespace rondo::testing
