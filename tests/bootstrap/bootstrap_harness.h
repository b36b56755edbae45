// Ranks of a bootstrap as threads and as forked processes, for tests. Every join has a deadline.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"

#define ASSERT_OK(expr)                                        \
  do {                                                         \
    const ::rondo::Status ok_status_ = (expr);                 \
    ASSERT_TRUE(ok_status_.ok()) << ok_status_.to_string();    \
  } while (0)
#define EXPECT_OK(expr)                                        \
  do {                                                         \
    const ::rondo::Status ok_status_ = (expr);                 \
    EXPECT_TRUE(ok_status_.ok()) << ok_status_.to_string();    \
  } while (0)

namespace rondo::testing {

struct Spawn {
  int ranks_per_host = 0;  // 0: one host
  double deadline_s = 30;
  BootstrapOptions options(Rank rank) const {
    BootstrapOptions o;
    o.deadline_s = deadline_s;
    if (ranks_per_host > 0) o.pretend_host = 1 + static_cast<uint64_t>(rank / ranks_per_host);
    return o;
  }
};

inline rondo_unique_id new_id() {
  auto id = make_unique_id();
  if (!id.ok()) ADD_FAILURE() << id.status().to_string();
  return id.ok() ? *id : rondo_unique_id{};
}

/// Joins nranks threads, runs body on each, says goodbye. Returns the status of each join.
inline std::vector<Status> join_threads(int nranks, const Spawn& spawn, const std::function<void(Bootstrap&)>& body) {
  const rondo_unique_id id = new_id();
  std::vector<Status> results(nranks);
  std::vector<std::thread> threads;
  for (Rank r = 0; r < nranks; ++r)
    threads.emplace_back([&, r] {
      auto b = Bootstrap::join(nranks, id, r, spawn.options(r));
      results[r] = b.status();
      if (!b.ok()) return;
      body(**b);
      (*b)->say_goodbye();
    });
  for (std::thread& t : threads) t.join();
  return results;
}

/// The error has this code and its text contains these facts.
inline void expect_error(const Status& s, StatusCode code, std::initializer_list<std::string> facts) {
  EXPECT_EQ(s.code(), code) << s.to_string();
  for (const std::string& fact : facts)
    EXPECT_NE(s.message().find(fact), std::string_view::npos) << "'" << fact << "' is missing in: " << s.to_string();
}

/// A forked child. The body's text is received when the child ends.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      const std::string text = body();
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(2);
      ::_exit(0);
    }
    ::close(ends[1]);
    out_ = ends[0];
  }
  Child(Child&& o) noexcept : pid_(std::exchange(o.pid_, -1)), out_(std::exchange(o.out_, -1)) {}
  ~Child() {
    if (pid_ > 0) kill();
  }
  pid_t pid() const { return pid_; }
  void kill() {
    ::kill(pid_, SIGKILL);
    join();
  }
  /// The body's result, or "killed by signal n".
  std::string join() {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(out_, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
    ::close(out_);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
    return text;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

/// Forks a child for each rank and passes the unique id to its body. The children are forked before the id is made,
/// because AddressSanitizer's allocator does not survive a fork next to a busy thread.
inline std::vector<Child> fork_ranks(int nranks, const std::function<std::string(Rank, const rondo_unique_id&)>& body) {
  std::vector<Child> children;
  int ends[2];
  if (::pipe(ends) != 0) return children;
  for (Rank r = 0; r < nranks; ++r)
    children.emplace_back([&, r]() -> std::string {
      rondo_unique_id id;
      const ssize_t got = ::read(ends[0], &id, sizeof id);
      ::close(ends[0]);
      ::close(ends[1]);
      return got == static_cast<ssize_t>(sizeof id) ? body(r, id) : "got no id";
    });
  const rondo_unique_id id = new_id();
  for (Rank r = 0; r < nranks; ++r) EXPECT_EQ(::write(ends[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  ::close(ends[0]);
  ::close(ends[1]);
  return children;
}

/// Joins nranks forked processes. "ok" for each whose body returned true.
inline std::vector<std::string> join_processes(int nranks, const Spawn& spawn,
                                               const std::function<bool(Bootstrap&)>& body) {
  std::vector<Child> children = fork_ranks(nranks, [&](Rank r, const rondo_unique_id& id) -> std::string {
    auto b = Bootstrap::join(nranks, id, r, spawn.options(r));
    if (!b.ok()) return b.status().to_string();
    const bool good = body(**b);
    (*b)->say_goodbye();
    return good ? "ok" : "failed";
  });
  std::vector<std::string> results;
  for (Child& c : children) results.push_back(c.join());
  return results;
}

inline int num_open_descriptors() {
  int n = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

/// Polls a condition until it is true or `seconds` have passed.
inline bool eventually(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    ::poll(nullptr, 0, 1);
  }
  return condition();
}

}  // namespace rondo::testing
