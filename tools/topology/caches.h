// Caches: sizes of the processor's data caches, from /sys/devices/system/cpu of Linux.
//
// sysconf(_SC_LEVEL3_CACHE_SIZE) is not used. On AMD processors glibc derives it from a CPUID leaf with the sum of all
// L3 caches of the package: a virtual machine on one of ten L3 caches of 32 MiB reads 320 MiB there. A core can only
// use its own L3 cache.
//
// Thread safety: pure functions of the files' content.
#pragma once

#include <cstdint>
#include <string>

namespace rondo {

inline constexpr const char* kCpuDirectory = "/sys/devices/system/cpu";

/// Bytes of the largest data or unified cache of a level. 0: the files name none. O(CPUs).
uint64_t data_cache_bytes(int level, const std::string& cpus = kCpuDirectory);
/// The same for the highest level in the files.
uint64_t last_level_cache_bytes(const std::string& cpus = kCpuDirectory);

}  // namespace rondo
