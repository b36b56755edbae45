// Tests the harness: reports of ranks, the difference between a killed, late, exiting and returning rank, and that
// nothing is left behind.
// labels: mp
// timeout: 60
#include "support/spawn.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "support/process_state.h"
#include "support/shared.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

using End = RankResult::End;

TEST(SharedCounter, WaitEndsAtTheValueOrAtTheDeadline) {
  SharedCounter counter;
  counter.add(2);
  EXPECT_TRUE(counter.wait_at_least(2, 5));
  const Stopwatch watch;
  EXPECT_FALSE(counter.wait_at_least(3, 0.05));
  EXPECT_GE(watch.seconds(), 0.05);
}

TEST(SharedCounter, IsSharedByProcesses) {
  Shared<SharedCounter> counter;
  const auto results = run_processes_bare(
      3,
      [&](Rank) {
        counter->add();
        return counter->wait_at_least(3, 20) ? Status() : Status(StatusCode::kTimeout, "the others did not count");
      },
      {});
  report(results, {});
  EXPECT_EQ(counter->value(), 3u);
}

TEST(RunProcesses, ReturnsStatusAndExpectationsOfEachRank) {
  const auto results = run_processes_bare(4,
                                          [](Rank rank) -> Status {
                                            if (rank == 1) return Status(StatusCode::kMismatch, "from the function");
                                            if (rank == 2) ADD_FAILURE() << "an expectation";
                                            return Status();
                                          },
                                          {});
  ASSERT_EQ(results.size(), 4u);
  for (const RankResult& r : results) EXPECT_EQ(r.end, End::kReturned) << "rank " << r.rank;
  EXPECT_TRUE(results[0].failures.empty());
  EXPECT_TRUE(results[3].failures.empty());
  ASSERT_EQ(results[1].failures.size(), 1u);
  EXPECT_NE(results[1].failures[0].find("from the function"), std::string::npos);
  ASSERT_EQ(results[2].failures.size(), 1u);
  EXPECT_NE(results[2].failures[0].find("an expectation"), std::string::npos);
  EXPECT_NE(results[2].failures[0].find("spawn_test.cc"), std::string::npos);
}

TEST(RunProcesses, LongReportsArriveWhole) {
  const std::string text(300000, 'x');
  const auto results = run_processes_bare(2, [&](Rank) { return Status(StatusCode::kInternal, text); }, {});
  for (const RankResult& r : results) {
    ASSERT_EQ(r.failures.size(), 1u);
    EXPECT_NE(r.failures[0].find(text), std::string::npos);
  }
}

TEST(RunProcesses, NamesASignal) {
  const auto results = run_processes_bare(2,
                                          [](Rank rank) {
                                            if (rank == 1) raise(SIGKILL);
                                            return Status();
                                          },
                                          {});
  EXPECT_EQ(results[0].end, End::kReturned);
  EXPECT_EQ(results[1].end, End::kSignalled);
  EXPECT_EQ(results[1].signal, SIGKILL);
}

TEST(RunProcesses, NamesARankThatExits) {
  const auto results = run_processes_bare(2,
                                          [](Rank rank) {
                                            if (rank == 0) _exit(7);
                                            return Status();
                                          },
                                          {});
  EXPECT_EQ(results[0].end, End::kExited);
  ASSERT_EQ(results[0].failures.size(), 1u);
  EXPECT_NE(results[0].failures[0].find("7"), std::string::npos);
  EXPECT_EQ(results[1].end, End::kReturned);
}

TEST(RunProcesses, KillsWhatIsLate) {
  SpawnOptions options;
  options.deadline_s = 0.3;
  Shared<SharedCounter> never;
  const Stopwatch watch;
  const auto results = run_processes_bare(
      2, [&](Rank rank) { return rank == 0 || never->wait_at_least(1, 60) ? Status() : Status(); }, options);
  EXPECT_LT(watch.seconds(), 10);
  EXPECT_EQ(results[0].end, End::kReturned);
  EXPECT_EQ(results[1].end, End::kDeadline);
}

TEST(RunProcesses, ParentHookMayKillARank) {
  Shared<SharedCounter> ready;
  SpawnOptions options;
  options.may_die = {1};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(ready->wait_at_least(2, 20));
    kill(pids[1], SIGKILL);
    ready->add();
  };
  const auto results = run_processes_bare(
      2,
      [&](Rank rank) {
        ready->add();
        return ready->wait_at_least(rank == 0 ? 3 : 4, 20) ? Status() : Status(StatusCode::kTimeout, "no kill");
      },
      options);
  report(results, options);  // the killed rank is expected
  EXPECT_EQ(results[1].end, End::kSignalled);
}

TEST(RunProcesses, LeavesNeitherProcessesNorDescriptors) {
  const std::set<std::string> before = open_descriptors();
  report(run_processes_bare(5, [](Rank) { return Status(); }, {}), {});
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(SpawnProcesses, EachRankHasItsRankAndCommunicator) {
  struct Seen {
    SharedCounter of_rank[3];
  };
  Shared<Seen> seen;
  spawn_processes(3, [&](Communicator& comm) {
    ASSERT_EQ(comm.size(), 3);
    seen->of_rank[comm.rank()].add();
  });
  for (SharedCounter& c : seen->of_rank) EXPECT_EQ(c.value(), 1u);
}

}  // namespace
}  // namespace rondo::testing
