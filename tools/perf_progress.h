// Progress messages of `rondo perf`. Thread safety: used by rank 0.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace rondo::tools {

/// Prints progress lines on stderr, at most every 0.2 s on a terminal, else every 2 s.
class Progress {
 public:
  void say(const std::string& what) {
    if (seconds_since(last_) < (terminal_ ? 0.2 : 2.0)) return;
    last_ = Clock::now();
    const std::string line = fmt::format("rondo perf: {:.0f} s, {}", seconds_since(start_), what);
    std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", line.c_str());
    shown_ = terminal_;
  }
  void clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point start_ = Clock::now(), last_ = start_;
  bool shown_ = false;
};

}  // namespace rondo::tools
