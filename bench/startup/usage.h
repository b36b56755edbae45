// This process's resources, from /proc: resident memory, address space, descriptors, mappings, threads.
//
// Thread safety: each call reads /proc anew.
#pragma once

#include <dirent.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace rondo::bench {

struct Usage {
  uint64_t anonymous_bytes = 0;  // resident memory without a file: heap, stacks
  uint64_t shared_bytes = 0;     // resident shared memory (memfd) of any rank that is mapped and touched here
  uint64_t proportional_bytes = 0;  // all resident memory, shared pages divided by the number of processes
  uint64_t page_table_bytes = 0;    // kernel memory for the mappings, not included above
  uint64_t address_bytes = 0;
  uint64_t descriptors = 0;
  uint64_t mappings = 0;
  uint64_t threads = 0;
};

inline uint64_t count_entries(const char* path) {
  uint64_t n = 0;
  DIR* dir = opendir(path);
  while (dir != nullptr && readdir(dir) != nullptr) ++n;
  if (dir != nullptr) closedir(dir);
  return n >= 2 ? n - 2 : 0;
}

inline Usage usage_now() {
  Usage u;
  auto kib = [](const std::string& line) { return std::stoull(line.substr(line.find(':') + 1)) << 10; };
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) u.anonymous_bytes = kib(line);
    if (line.starts_with("RssShmem:")) u.shared_bytes = kib(line);
    if (line.starts_with("VmPTE:")) u.page_table_bytes = kib(line);
    if (line.starts_with("VmSize:")) u.address_bytes = kib(line);
  }
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);)
    if (line.starts_with("Pss:")) u.proportional_bytes = kib(line);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++u.mappings;
  u.descriptors = count_entries("/proc/self/fd") - 1;  // opendir's own
  u.threads = count_entries("/proc/self/task");
  return u;
}

}  // namespace rondo::bench
