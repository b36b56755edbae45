// Sets the calling thread's CPUs (the kernel's numbers), for tests of binding.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace rondo::testing {

inline std::vector<int> cpu_mask() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// Permanent: use it only in a forked child, or keep the old mask.
inline void set_cpu_mask(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
}

}  // namespace rondo::testing
