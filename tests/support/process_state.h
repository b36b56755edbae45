// A process's descriptors, threads and mappings, and names in shared directories. Tests compare before and after.
// Thread safety: not needed; each call reads /proc again.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <string>

#include "support/shared.h"

namespace rondo::testing {

/// Names of a directory's entries, without "." and "..".
inline std::set<std::string> names_in(const std::string& path) {
  std::set<std::string> names;
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) names.insert(entry->d_name);
  closedir(dir);
  names.erase(".");
  names.erase("..");
  return names;
}

/// "number -> target" of every open descriptor.
inline std::set<std::string> open_descriptors() {
  std::set<std::string> open;
  for (const std::string& fd : names_in("/proc/self/fd")) {
    char target[512];
    const std::string link = "/proc/self/fd/" + fd;
    const ssize_t n = readlink(link.c_str(), target, sizeof(target));
    if (n > 0) open.insert(fd + " -> " + std::string(target, static_cast<size_t>(n)));  // n < 0: opendir's own
  }
  return open;
}

inline size_t num_threads() { return names_in("/proc/self/task").size(); }

/// Number and size of shared or file mappings. The heap is not counted, because an allocator may keep freed memory.
struct Mappings {
  uint64_t count = 0;
  uint64_t bytes = 0;
};
inline Mappings shared_mappings() {
  Mappings m;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t dash = line.find('-'), space = line.find(' ');
    if (space == std::string::npos || line.size() < space + 5 || line[space + 4] != 's') continue;
    m.count += 1;
    m.bytes += std::stoull(line.substr(dash + 1, space - dash - 1), nullptr, 16) -
               std::stoull(line.substr(0, dash), nullptr, 16);
  }
  return m;
}

/// The process's resources now, and later those that were not released. Some end a little later (the thread of a
/// rendezvous), so it waits for up to five seconds. Empty: all are released.
struct Holdings {
  std::set<std::string> descriptors = open_descriptors();
  size_t threads = num_threads();
  uint64_t mappings = shared_mappings().count;
};
inline std::string leftovers(const Holdings& before) {
  std::string text;
  for (const Stopwatch watch; watch.seconds() < 5; usleep(1000)) {
    text.clear();
    const Holdings after;
    for (const std::string& d : after.descriptors)
      if (before.descriptors.count(d) == 0) text += "descriptor " + d + " is left; ";
    if (after.threads > before.threads) text += "threads are left; ";
    if (after.mappings > before.mappings) text += "mappings are left; ";
    if (text.empty()) break;
  }
  return text;
}

/// Entries of /dev/shm and /tmp that rondo may have made. Other programs' entries come and go.
inline std::set<std::string> shared_names() {
  std::set<std::string> found;
  for (const char* dir : {"/dev/shm", "/tmp"})
    for (const std::string& name : names_in(dir))
      if (name.find("rondo") != std::string::npos) found.insert(std::string(dir) + "/" + name);
  return found;
}

}  // namespace rondo::testing
