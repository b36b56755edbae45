// The duration and seed of random tests. RONDO_TEST_STRESS_FACTOR=N runs N times as many cases (scripts/stress.sh);
// --gtest_random_seed=N sets the seed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace rondo::testing {

inline int stress_factor() {
  const char* value = std::getenv("RONDO_TEST_STRESS_FACTOR");
  return value != nullptr ? std::max(1, std::atoi(value)) : 1;
}
inline uint64_t stress_seed(int nranks) {
  const int chosen = GTEST_FLAG_GET(random_seed);
  return chosen != 0 ? static_cast<uint64_t>(chosen) : 20240229u + static_cast<uint64_t>(nranks);
}

}  // namespace rondo::testing
