// Communicators made from communicators, for tests: made, or a failed expectation.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

using Comm = std::unique_ptr<Communicator>;

/// The part, or a failed expectation and nothing.
inline Comm split_or_fail(Communicator& comm, int colour, int key, const Config& config = {}) {
  auto part = comm.split(colour, key, config);
  EXPECT_TRUE(is_ok(part.status()));
  return part.ok() ? std::move(*part) : nullptr;
}

/// The parent's ranks of a part's members, in the part's order. Collective over the part.
inline std::vector<Rank> origins(Communicator& part, Rank mine) {
  std::vector<int32_t> all(static_cast<size_t>(part.size()), -1);
  EXPECT_TRUE(is_ok(part.all_gather(&mine, all.data(), 1, Dtype::kInt32)));
  return {all.begin(), all.end()};
}

inline Comm shrink_or_fail(Communicator& comm, const std::vector<Rank>& excluded = {}, const Config& config = {}) {
  auto made = comm.shrink(excluded, config);
  EXPECT_TRUE(is_ok(made.status()));
  return made.ok() ? std::move(*made) : nullptr;
}

}  // namespace rondo::testing
