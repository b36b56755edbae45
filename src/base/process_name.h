// ProcessName: a process of this host as another one can recognise it later, also when its number has been given to
// somebody else; and whether it has ended.
//
// Thread safety: values.
#pragma once

#include <cstdint>

namespace rondo {

/// Trivially copyable: it travels between ranks.
struct ProcessName {
  int32_t pid = 0;
  uint64_t start_ticks = 0;    // since the host's start: /proc/<pid>/stat, field 22
  uint64_t pid_namespace = 0;  // inode; 0: unknown

  static ProcessName self();
  /// True when the process is gone for good, and with it its mappings. False while it lives, and where that cannot be
  /// seen: processes of another pid namespace. Costs a few system calls; never blocks.
  bool ended() const;
};

}  // namespace rondo
