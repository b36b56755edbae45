// Messages that match by their tags, with ranks as processes: over shared memory, over TCP and UCX, and on several
// hosts.
// labels: mp
// timeout: 300
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "api/tag_errors_suite.h"
#include "api/tags_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Tags, ::testing::Values(World::kProcesses, World::kTcp, World::kUcx, World::kHosts),
                         [](const auto& info) { return std::string(world_name(info.param)); });

INSTANTIATE_TEST_SUITE_P(Processes, TagErrors,
                         ::testing::Values(World::kProcesses, World::kTcp, World::kUcx, World::kHosts),
                         [](const auto& info) { return std::string(world_name(info.param)); });

class TagsDeath : public WorldTest {};

// Rank 2 dies. Rank 0 waits for any rank, rank 1 waits for rank 2.
TEST_P(TagsDeath, AKilledRankIsNamed) {
  Shared<SharedCounter> posted, checked;
  SpawnOptions options;
  options.may_die = {2};
  spawn(
      GetParam(), 3,
      [&](Communicator& comm) {
        std::vector<int> a(3);
        Work work;
        if (comm.rank() != 2) {
          ASSERT_TRUE(is_ok(recv_tagged(comm, a, comm.rank() == 0 ? kAnyRank : 2, 5, nullptr, &work)));
        }
        posted->add();
        ASSERT_TRUE(posted->wait_at_least(3, 20));
        if (comm.rank() == 2) kill(getpid(), SIGKILL);
        const Stopwatch watch;
        EXPECT_TRUE(fails_with(work.wait(), StatusCode::kPeerLost,
                               {"rank 2 is lost", "tag 5", comm.rank() == 0 ? "from any rank" : "from rank 2"}));
        EXPECT_LT(watch.seconds(), kSanitized ? 5 : 2);
        checked->add();
        ASSERT_TRUE(checked->wait_at_least(2, 20));  // otherwise a rank could see that the other left
      },
      options);
}

// Rank 0 dies while its long message arrives, which no receive has taken so far.
TEST_P(TagsDeath, ASenderDiesWithinAnUnexpectedMessage) {
  Shared<SharedCounter> arriving;
  SpawnOptions options;
  options.may_die = {0};
  spawn(
      GetParam(), 2,
      [&](Communicator& comm) {
        std::vector<int> small(4);
        if (comm.rank() == 0) {
          Work work;
          const std::vector<int> large(100'000'000);
          std::thread killer([&] {
            EXPECT_TRUE(arriving->wait_at_least(1, 20));
            kill(getpid(), SIGKILL);
          });
          EXPECT_TRUE(is_ok(send_tagged(comm, large, 1, 1)));
          killer.join();
          return;
        }
        Work work;
        ASSERT_TRUE(is_ok(recv_tagged(comm, small, kAnyRank, 2, nullptr, &work)));
        arriving->add();
        const Stopwatch watch;
        EXPECT_TRUE(fails_with(work.wait(), StatusCode::kPeerLost, {"rank 0 is lost"}));
        EXPECT_LT(watch.seconds(), kSanitized ? 10 : 4);
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Processes, TagsDeath, ::testing::Values(World::kProcesses, World::kTcp, World::kHosts),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
