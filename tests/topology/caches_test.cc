// Sizes of caches, from a tree of files like Linux's /sys/devices/system/cpu.
// labels: unit
#include "topology/caches.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace rondo {
namespace {

/// A folder of CPUs, removed at the end.
class FakeCpus {
 public:
  FakeCpus() { std::filesystem::create_directories(root_); }
  ~FakeCpus() { std::filesystem::remove_all(root_); }
  FakeCpus(const FakeCpus&) = delete;
  FakeCpus& operator=(const FakeCpus&) = delete;

  void add_cache(int cpu, int index, int level, const char* type, const char* size) {
    const auto cache = root_ / ("cpu" + std::to_string(cpu)) / "cache" / ("index" + std::to_string(index));
    std::filesystem::create_directories(cache);
    std::ofstream(cache / "level") << level << "\n";
    std::ofstream(cache / "type") << type << "\n";
    std::ofstream(cache / "size") << size << "\n";
  }
  void add_folder(const char* name) { std::filesystem::create_directories(root_ / name); }
  std::string path() const { return root_; }

 private:
  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("rondo_fake_cpus_" + std::to_string(getpid()));
};

// Two cores on each of two L3 caches: a core has 32 MiB, not the package's total.
TEST(Caches, TheLastLevelIsOneCacheAndNotTheSumOfThePackage) {
  FakeCpus fake;
  for (int cpu = 0; cpu < 4; ++cpu) {
    fake.add_cache(cpu, 0, 1, "Data", "32K");
    fake.add_cache(cpu, 1, 1, "Instruction", "64K");
    fake.add_cache(cpu, 2, 2, "Unified", "1024K");
    fake.add_cache(cpu, 3, 3, "Unified", "32768K");
  }
  fake.add_folder("cpu4");  // offline: it has no caches
  fake.add_folder("cpufreq");
  EXPECT_EQ(last_level_cache_bytes(fake.path()), 32u << 20);
  EXPECT_EQ(data_cache_bytes(1, fake.path()), 32u << 10);
  EXPECT_EQ(data_cache_bytes(2, fake.path()), 1u << 20);
  EXPECT_EQ(data_cache_bytes(3, fake.path()), 32u << 20);
  EXPECT_EQ(data_cache_bytes(4, fake.path()), 0u);
}

TEST(Caches, CoresOfSeveralKinds) {
  FakeCpus fake;
  fake.add_cache(0, 0, 2, "Unified", "512K");
  fake.add_cache(1, 0, 2, "Unified", "2M");
  EXPECT_EQ(last_level_cache_bytes(fake.path()), 2u << 20);
}

TEST(Caches, WhatIsMissingOrDamagedCountsAsUnknown) {
  FakeCpus fake;
  EXPECT_EQ(last_level_cache_bytes(fake.path()), 0u);
  EXPECT_EQ(last_level_cache_bytes(fake.path() + "/missing"), 0u);
  fake.add_cache(0, 0, 3, "Unified", "many");
  EXPECT_EQ(last_level_cache_bytes(fake.path()), 0u);
}

// This machine: the values of `rondo perf` equal the kernel's.
TEST(Caches, OfThisMachine) {
  std::ifstream level3(std::string(kCpuDirectory) + "/cpu0/cache/index3/size");
  uint64_t kib = 0;
  if (!(level3 >> kib)) GTEST_SKIP() << "the kernel names no fourth cache of cpu0";
  EXPECT_GE(data_cache_bytes(3) >> 10, kib);
  EXPECT_LE(last_level_cache_bytes() >> 10, kib * 64);
}

}  // namespace
}  // namespace rondo
