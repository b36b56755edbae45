// Several communicators at once: on one set of ranks, in one process, from several threads, in one group.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "api/parts.h"

namespace rondo::testing {

class Several : public ::testing::TestWithParam<World> {};

// `count` calls of random sizes, blocking and not, equal on all ranks by the seed.
inline void use(Communicator& comm, int count, unsigned seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const uint64_t elems = random() % 3 == 0 ? random() % 60000 : random() % 600;
    if (random() % 3 != 0) {
      EXPECT_TRUE(works(comm, elems)) << "call " << i << " of seed " << seed;
      continue;
    }
    SimpleAllReduce a(comm, elems), b(comm, elems / 2);
    Work first, second;
    ASSERT_TRUE(is_ok(a.start(comm, &first)));
    ASSERT_TRUE(is_ok(b.start(comm, &second)));
    EXPECT_TRUE(is_ok(second.wait()));
    EXPECT_TRUE(is_ok(first.wait()));
    EXPECT_EQ(a.judge() + b.judge(), "");
  }
}

TEST_P(Several, TwoThreadsOfARankOnTwoCommunicators) {
  constexpr int kCalls = kSanitized ? 40 : 200;
  spawn(GetParam(), 3, [](Communicator& comm) {
    const Comm reversed = split_or_fail(comm, 0, -comm.rank());
    ASSERT_NE(reversed, nullptr);
    std::thread other([&] { use(*reversed, kCalls, 17); });
    use(comm, kCalls, 4);
    other.join();
  });
}

TEST_P(Several, SplitsAndCallsFromTwoThreads) {
  constexpr int kRounds = kSanitized ? 8 : 40;
  spawn(GetParam(), 4, [](Communicator& comm) {
    const Comm twin = split_or_fail(comm, 0, 0);
    ASSERT_NE(twin, nullptr);
    std::thread other([&] {  // makes parts of the twin while the first thread uses and splits the parent
      for (int i = 0; i < kRounds; ++i) {
        const Comm part = split_or_fail(*twin, (twin->rank() + i) % 2, i % 3 == 0 ? -twin->rank() : 0);
        ASSERT_NE(part, nullptr);
        use(*part, 3, static_cast<unsigned>(i));
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      const Comm part = split_or_fail(comm, comm.rank() / 2, 0);
      ASSERT_NE(part, nullptr);
      use(comm, 2, static_cast<unsigned>(i));
      use(*part, 2, static_cast<unsigned>(100 + i));
    }
    other.join();
  });
}

TEST_P(Several, InOneGroup) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    const Comm row = split_or_fail(comm, comm.rank() / 2, 0), column = split_or_fail(comm, comm.rank() % 2, 0);
    ASSERT_NE(row, nullptr);
    ASSERT_NE(column, nullptr);
    for (int i = 0; i < 20; ++i) {
      SimpleAllReduce a(comm, 3000), b(*row, 70000), c(*column, 5);
      group_start();
      // The order differs between ranks. Within a group that is allowed.
      if (comm.rank() % 2 == 0) {
        ASSERT_TRUE(is_ok(a.start(comm, nullptr)));
        ASSERT_TRUE(is_ok(b.start(*row, nullptr)));
        ASSERT_TRUE(is_ok(c.start(*column, nullptr)));
      } else {
        ASSERT_TRUE(is_ok(c.start(*column, nullptr)));
        ASSERT_TRUE(is_ok(b.start(*row, nullptr)));
        ASSERT_TRUE(is_ok(a.start(comm, nullptr)));
      }
      ASSERT_TRUE(is_ok(group_end()));
      EXPECT_EQ(a.judge() + b.judge() + c.judge(), "");
    }
  });
}

}  // namespace rondo::testing
