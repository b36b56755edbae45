// Error messages, with ranks as processes.
// labels: mp
// timeout: 120
#include "api/errors_suite.h"

#include <signal.h>
#include <unistd.h>

namespace rondo::testing {

// Rank 1 ends by `leave` while ranks 0 and 2 wait for it in a call.
std::vector<RankResult> run_with_leaver(void (*leave)()) {
  SpawnOptions options;
  options.deadline_s = 20;
  auto results = internal::run(
      World::kProcesses, 3,
      [&](std::unique_ptr<Communicator> comm) -> Status {
        EXPECT_TRUE(works(*comm));
        if (comm->rank() == 1) leave();
        const Stopwatch watch;
        EXPECT_TRUE(fails_with(make(*comm, {}), StatusCode::kPeerLost, {rank_text(1)}));
        EXPECT_LT(watch.seconds(), kSanitized ? 10 : 1);
        return Status();
      },
      options);
  for (const Rank r : {0, 2})
    for (const std::string& text : results[static_cast<size_t>(r)].failures)
      ADD_FAILURE() << rank_text(r) << ": " << text;
  return results;
}

INSTANTIATE_TEST_SUITE_P(Processes, Errors, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

// ---- only for separate processes

TEST(ProcessErrors, ARankThatExitsWithoutGoodbyeIsNamedSoon) {
  const auto results = run_with_leaver([] { _exit(0); });
  EXPECT_EQ(results[1].end, RankResult::End::kExited);
}

// With equal deadlines one rank still reaches it first and leaves at once.
TEST(ProcessErrors, AStoppedRankIsNamedByAllOthers) {
  for (const World world : {World::kProcesses, World::kTcp}) {
    SCOPED_TRACE(world_name(world));
    Shared<SharedCounter> told;
    SpawnOptions options;
    options.config.deadline_s = 0.7;
    options.may_die = {2};
    options.in_parent = [&](const std::vector<pid_t>& pids) {
      EXPECT_TRUE(told->wait_at_least(3, 50));
      kill(pids[2], SIGKILL);
    };
    spawn_owning(
        world, 4,
        [&](std::unique_ptr<Communicator> comm) {
          EXPECT_TRUE(works(*comm));
          if (comm->rank() == 2) kill(getpid(), SIGSTOP);
          EXPECT_TRUE(fails_with(make(*comm, {}), StatusCode::kTimeout, {"rank 2"}));
          if (world == World::kProcesses) {
            EXPECT_TRUE(fails_with(comm->error(), StatusCode::kTimeout, {"rank 2's process", "is stopped"}));
          }
          told->add();
          comm.reset();
        },
        options);
  }
}

TEST(ProcessErrors, AllocWithoutTheOthersTimesOut) {
  Shared<SharedCounter> num_ended;
  SpawnOptions options;
  options.config.init_deadline_s = 2;  // alloc counts as set-up
  options.deadline_s = 20;
  spawn(
      World::kProcesses, 2,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        if (comm.rank() == 1) {
          EXPECT_TRUE(num_ended->wait_at_least(1, 15));
          return;
        }
        EXPECT_TRUE(fails_with(comm.alloc(4096).status(), StatusCode::kTimeout, {rank_text(1)}));
        num_ended->add();
      },
      options);
}

// A rank may wait for its earlier calls before it calls alloc. The others then go on with these calls in alloc.
TEST(ProcessErrors, AllocDoesNotHoldUpEarlierCalls) {
  SpawnOptions options;
  options.config.init_deadline_s = 15;
  options.deadline_s = 60;
  spawn(
      World::kProcesses, 2,
      [](Communicator& comm) {
        std::vector<float> data(4 << 20, 1);
        for (int i = 0; i < 3; ++i) {
          Work work;
          CallOptions call;
          call.algorithm = "ring";  // messages both ways: neither rank can finish alone
          ASSERT_TRUE(
              is_ok(comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kMax, &call, &work)));
          const bool waits_first = comm.rank() == i % 2;
          if (waits_first) {
            ASSERT_TRUE(is_ok(work.wait()));
          }
          ASSERT_TRUE(is_ok(comm.alloc(4096).status()));
          if (!waits_first) {
            ASSERT_TRUE(is_ok(work.wait()));
          }
        }
      },
      options);
}

TEST(ProcessErrors, AllocOfDifferentSizesIsNamed) {
  SpawnOptions options;
  options.config.deadline_s = 5;
  options.deadline_s = 20;
  spawn(
      World::kProcesses, 3,
      [](Communicator& comm) {
        const uint64_t bytes = comm.rank() == 2 ? 8192 : 4096;
        EXPECT_TRUE(fails_with(comm.alloc(bytes).status(), StatusCode::kMismatch, {"4096", "8192"}));
      },
      options);
}

}  // namespace rondo::testing
