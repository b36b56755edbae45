// Caches: sizes of the processor's data caches, as Linux describes each of them in /sys/devices/system/cpu.
//
// sysconf(_SC_LEVEL3_CACHE_SIZE) is not used. On AMD processors glibc derives it from a CPUID leaf that holds the sum
// of all L3 caches of the package: a virtual machine on one of ten L3 caches of 32 MiB reads 320 MiB there. No core
// reaches more than its own L3 cache.
//
// Thread safety: pure functions of what the files say.
#pragma once

#include <cstdint>
#include <string>

namespace rondo {

inline constexpr const char* kCpuDirectory = "/sys/devices/system/cpu";

/// Bytes of one data or unified cache of a level, the largest there is. 0: the files name none. O(CPUs).
uint64_t data_cache_bytes(int level, const std::string& cpus = kCpuDirectory);
/// The same of the highest level that the files name.
uint64_t last_level_cache_bytes(const std::string& cpus = kCpuDirectory);

}  // namespace rondo
