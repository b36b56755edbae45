// Hundreds of ranks on several hosts: communicators are made, sum, split, disagree, lose a rank and shrink. There are
// many more ranks than cores, and control connections form a grid that crosses hosts.
// labels: mp
// timeout: 240
// alone
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "api/parts.h"

namespace rondo::testing {
namespace {

struct Numbers {
  SharedCounter ready, failed;
};

TEST(ManyOnHosts, SumSplitDifferLoseARankAndShrink) {
  if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  constexpr int kRanks = kSanitized ? 36 : 130;  // 65 on each of two hosts: each host is a grid, too
  constexpr Rank kVictim = kRanks / 2;
  if (kSanitized) setenv("RONDO_TEST_FULL_MESH", "8", 1);
  Shared<Numbers> run;
  SpawnOptions options;
  options.may_die = {kVictim};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(run->ready.wait_at_least(kRanks, 100));
    kill(pids[static_cast<size_t>(kVictim)], SIGKILL);
  };
  spawn(
      World::kHosts, kRanks,
      [&](Communicator& comm) {
        const Stopwatch watch;
        EXPECT_TRUE(works(comm, 1000));
        if (comm.rank() == 0) std::printf("%d ranks: first all-reduce after %.2f s\n", kRanks, watch.seconds());
        const Comm half = split_or_fail(comm, comm.rank() % 2, 0);
        ASSERT_NE(half, nullptr);
        EXPECT_EQ(half->size(), kRanks / 2);
        EXPECT_TRUE(works(*half));
        if (comm.rank() == 0) std::printf("and one of its half %.2f s later\n", watch.seconds());
        SimpleAllReduce other(*half, half->rank() == 7 ? 9 : 8);
        EXPECT_TRUE(fails_with(other.start(*half, nullptr), StatusCode::kMismatch, {"rank 7 ", "of 8 ", "of 9 "}));
        if (comm.rank() == 0) std::printf("the differing rank there is named after %.2f s\n", watch.seconds());
        run->ready.add();
        Status status;
        for (const Stopwatch since; status.ok() && since.seconds() < 60;) {
          SimpleAllReduce call(comm, 1 << 10);
          status = call.start(comm, nullptr);
        }
        EXPECT_TRUE(fails_with(status, StatusCode::kPeerLost, {"rank " + std::to_string(kVictim)}));
        const Comm made = shrink_or_fail(comm);
        ASSERT_NE(made, nullptr);
        EXPECT_EQ(made->size(), kRanks - 1);
        EXPECT_TRUE(works(*made));
        if (comm.rank() == 0) std::printf("and one of the survivors %.2f s after the first\n", watch.seconds());
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
