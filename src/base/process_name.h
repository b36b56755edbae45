// ProcessName: identifies a process of this host, even after its pid was reused, and reports whether it has ended.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace rondo {

/// Trivially copyable, because ranks exchange it.
struct ProcessName {
  int32_t pid = 0;
  uint64_t start_ticks = 0;    // since the host's start: /proc/<pid>/stat, field 22
  uint64_t pid_namespace = 0;  // inode; 0: unknown

  static ProcessName self();
  /// True if the process and its mappings are gone. False while it lives, or if it is not visible (another pid
  /// namespace). Costs a few system calls; never blocks.
  bool ended() const;
  friend bool operator==(const ProcessName&, const ProcessName&) = default;
};
template <class C>
void fields(C& c, ProcessName& p) {
  c(p.pid, p.start_ticks, p.pid_namespace);
}

/// The pid namespace of this process, 0 if unknown.
uint64_t this_pid_namespace();

}  // namespace rondo
