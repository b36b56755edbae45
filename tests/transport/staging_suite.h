// Staging memory of communicators: leftovers of many of them, a full pool, and that reused memory carries no old data.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "transport/pool.h"

namespace rondo::testing {

inline StagingPool::Usage pool_usage() {
  auto pool = StagingPool::acquire();
  EXPECT_TRUE(is_ok(pool.status()));
  return (*pool)->usage();
}

/// An all_reduce through slots of a ring: each rank takes at least one block of data from its pool.
inline ::testing::AssertionResult works_through_slots(Communicator& comm, const char* algorithm = "ring") {
  CallOptions options;
  options.algorithm = algorithm;
  SimpleAllReduce call(comm, 20000);
  const Status status = call.start(comm, nullptr, &options);
  if (!status.ok()) return ::testing::AssertionFailure() << status.to_string();
  const std::string wrong = call.judge();
  return wrong.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << wrong;
}

/// Resident memory except code: heap, stacks, anonymous and shared mappings.
inline uint64_t resident_bytes() {
  uint64_t bytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:")) bytes += std::stoull(line.substr(9)) << 10;
  return bytes;
}

struct HeldMemory {
  size_t descriptors = open_descriptors().size();
  size_t threads = num_threads();
  Mappings mappings = shared_mappings();
  uint64_t resident = resident_bytes();
  uint64_t used_bytes = pool_usage().used_bytes;
};

inline void expect_no_more(const HeldMemory& before, const HeldMemory& after) {
  EXPECT_EQ(before.descriptors, after.descriptors);
  EXPECT_EQ(before.threads, after.threads);
  EXPECT_EQ(before.mappings.count, after.mappings.count);
  EXPECT_EQ(before.mappings.bytes, after.mappings.bytes);
  EXPECT_EQ(before.used_bytes, after.used_bytes) << "of the pool";
  if (kSanitized) return;
  EXPECT_LE(after.resident, before.resident + (1 << 20)) << "resident";  // the heap keeps a little
}

}  // namespace rondo::testing
