// Tests the harness with ranks as threads.
// labels: unit tsan
// timeout: 30
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

TEST(SpawnThreads, EachRankHasItsRankAndCommunicator) {
  SharedCounter seen[4];
  spawn_threads(4, [&](Communicator& comm) {
    EXPECT_EQ(comm.size(), 4);
    seen[comm.rank()].add();
  });
  for (SharedCounter& c : seen) EXPECT_EQ(c.value(), 1u);
}

TEST(SpawnThreads, RanksRunAtTheSameTime) {
  Barrier all;
  spawn_threads(4, [&](Communicator&) { EXPECT_TRUE(all.arrive_and_wait(4, 20)); });
}

TEST(SpawnThreads, AStatusBecomesAFailureThatNamesTheRank) {
  EXPECT_NONFATAL_FAILURE(
      spawn_threads(
          2, [](Communicator& comm) { return comm.rank() == 1 ? Status(StatusCode::kAborted, "why") : Status(); }),
      "rank 1: aborted");
}

TEST(SpawnThreads, TheCommunicatorMayBeDestroyedEarly) {
  spawn_owning(World::kThreads, 3, [](std::unique_ptr<Communicator> comm) { comm.reset(); });
}

}  // namespace
}  // namespace rondo::testing
