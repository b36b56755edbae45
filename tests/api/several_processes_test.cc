// Several communicators at once, with ranks as processes, and as threads of several processes.
// labels: mp
// timeout: 180
#include "api/several_suite.h"
#include "support/process_state.h"
#include "support/spawn_processes.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Several, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

TEST(Several, AProcessHasOneProgressThread) {
  spawn_processes(2, [](Communicator& comm) {
    const size_t before = num_threads();
    {
      std::vector<Comm> twins;
      for (int i = 0; i < 3; ++i) twins.push_back(split_or_fail(comm, 0, 0));
      EXPECT_EQ(num_threads(), before) << "no asynchronous call yet";
      for (const Comm& twin : twins) {
        SimpleAllReduce call(comm, 1000);
        Work work;
        ASSERT_TRUE(is_ok(call.start(*twin, &work)));
        ASSERT_TRUE(is_ok(work.wait()));
        EXPECT_EQ(call.judge(), "");
        EXPECT_EQ(num_threads(), before + 1);
      }
      use(comm, 20, 5);
      EXPECT_EQ(num_threads(), before + 1);
    }
    EXPECT_EQ(num_threads(), before + 1) << "the first communicator still uses it";
  });
}

// Two processes of two threads each: a communicator of all four, and its parts by process and across.
TEST(Several, ThreadsOfTwoProcesses) {
  constexpr int kProcesses = 2, kThreads = 2;
  IdPipes pipes(kProcesses);
  report(run_processes_bare(
             kProcesses,
             [&](Rank process) -> Status {
               RONDO_TRY_ASSIGN(const UniqueId id, pipes.exchange(process));
               std::vector<std::thread> threads;
               for (int t = 0; t < kThreads; ++t)
                 threads.emplace_back([&, rank = process * kThreads + t] {
                   auto comm = Communicator::init_rank(kProcesses * kThreads, id, rank);
                   ASSERT_TRUE(is_ok(comm.status()));
                   use(**comm, 50, 1);
                   const Comm local_peers = split_or_fail(**comm, process, 0);
                   const Comm across = split_or_fail(**comm, rank % kThreads, 0);
                   ASSERT_NE(local_peers, nullptr);
                   ASSERT_NE(across, nullptr);
                   comm->reset();
                   use(*local_peers, 30, 2);
                   std::thread other([&] { use(*across, 30, 3); });
                   use(*local_peers, 30, 4);
                   other.join();
                 });
               for (std::thread& t : threads) t.join();
               return {};
             },
             {}),
         {});
}

}  // namespace rondo::testing
