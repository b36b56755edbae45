// A forked child of a rank, for tests of its parent's communicators in the child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace rondo::testing {
inline bool in_forked_child = false;
}
// Memory of the parent's other threads is not a leak of the child.
extern "C" inline int __lsan_is_turned_off() { return rondo::testing::in_forked_child ? 1 : 0; }  // NOLINT

namespace rondo::testing {

/// Runs body in a forked child that ends by exit(), with destructors of static objects. Returns the body's text, and
/// any error of the child's end.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return "no fork";
  if (child == 0) {
    in_forked_child = true;
    alarm(60);
    close(ends[0]);
    const std::string text = body();
    (void)!write(ends[1], text.data(), text.size());
    std::exit(0);
  }
  close(ends[1]);
  std::string text;
  char bytes[4096];
  for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<size_t>(n));
  close(ends[0]);
  int how = 0;
  waitpid(child, &how, 0);
  if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) text += " the child ended with wait status " + std::to_string(how);
  return text;
}

}  // namespace rondo::testing
