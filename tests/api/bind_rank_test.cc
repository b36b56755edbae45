// RONDO_BIND as the kernel sees it: masks of threads before and after a communicator is made. Runs in separate
// processes, because masks are permanent.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/cpu_masks.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/spawn_processes.h"
#include "topology/host.h"
#include "topology/host_reader.h"

namespace rondo::testing {
namespace {

constexpr double kSoon = 10;  // seconds: a started thread has run by then

// Number of this process's threads, by mask.
std::map<std::string, int> threads_by_mask() {
  std::map<std::string, int> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    constexpr std::string_view kKey = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(kKey)) ++found[line.substr(kKey.size())];
  }
  return found;
}

Config with(const std::string& bind) {
  Config config;
  config.settings = "bind = " + bind;
  return config;
}

void all_reduce_later(Communicator& comm) {
  SimpleAllReduce call(comm, 1000);
  Work work;
  ASSERT_TRUE(is_ok(call.start(comm, &work)));
  ASSERT_TRUE(is_ok(work.wait()));
  EXPECT_EQ(call.judge(), "");
}

/// fn(rank, id) in two processes.
template <class Fn>
void in_two_processes(Fn fn) {
  constexpr int kRanks = 2;
  IdPipes pipes(kRanks);
  report(run_processes_bare(kRanks,
                            [&](Rank rank) -> Status {
                              RONDO_TRY_ASSIGN(const UniqueId id, pipes.exchange(rank));
                              fn(rank, id);
                              return {};
                            },
                            {}),
         {});
}

class BindRank : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have_hwloc()) GTEST_SKIP() << why_no_hwloc();
  }
  const std::vector<int> before_ = cpu_mask();
};

TEST_F(BindRank, NothingIsBoundUnasked) {
  in_two_processes([&](Rank rank, const UniqueId& id) {
    auto comm = Communicator::init_rank(2, id, rank);
    ASSERT_TRUE(is_ok(comm.status()));
    all_reduce_later(**comm);
    EXPECT_EQ(cpu_mask(), before_);
    EXPECT_EQ(threads_by_mask().size(), 1u);
  });
}

TEST_F(BindRank, EachRankGetsACoreOfItsOwn) {
  const auto host = read_processors();
  ASSERT_TRUE(host.ok()) << host.status().to_string();
  if (host->cores.size() < 2 || before_.size() != host->pus.size()) GTEST_SKIP() << "needs a machine of two cores";
  in_two_processes([&](Rank rank, const UniqueId& id) {
    {
      auto comm = Communicator::init_rank(2, id, rank, with("core"));
      ASSERT_TRUE(is_ok(comm.status()));
      const Core& core = host->cores[host->cores.size() / 2 * static_cast<size_t>(rank)];
      EXPECT_EQ(cpu_mask(), os_numbers(*host, core.pus));
      all_reduce_later(**comm);
      // A part keeps the binding, and so does another communicator of bound ranks.
      const std::vector<int> bound = cpu_mask();
      auto part = (*comm)->split(0, 1 - rank);
      ASSERT_TRUE(is_ok(part.status()));
      all_reduce_later(**part);
      EXPECT_EQ(cpu_mask(), bound);
    }
    EXPECT_EQ(cpu_mask().size(), host->cores[0].pus.size()) << "it stays when the communicator ends";
  });
}

// The thread that starts the first asynchronous call may be unbound. The progress thread binds itself.
TEST_F(BindRank, TheProgressThreadToo) {
  if (before_.size() < 2) GTEST_SKIP() << "needs two CPUs";
  in_two_processes([&](Rank rank, const UniqueId& id) {
    auto comm = Communicator::init_rank(2, id, rank, with("core"));
    ASSERT_TRUE(is_ok(comm.status()));
    const std::string place = cpu_list_text(cpu_mask());
    set_cpu_mask(before_);
    EXPECT_EQ(threads_by_mask().count(place), 0u) << place;
    all_reduce_later(**comm);
    // It may begin a moment after the call that makes it.
    for (const Stopwatch watch; watch.seconds() < kSoon && threads_by_mask().count(place) == 0;) sched_yield();
    EXPECT_EQ(threads_by_mask()[place], 1) << place;
    EXPECT_EQ(cpu_mask(), before_);
  });
}

TEST_F(BindRank, ALaunchersMaskIsNeverWidened) {
  in_two_processes([&](Rank rank, const UniqueId& id) {
    const std::vector<int> mine = {before_[static_cast<size_t>(rank) % before_.size()]};
    set_cpu_mask(mine);
    auto comm = Communicator::init_rank(2, id, rank, with(rank == 0 ? "core" : "numa"));
    ASSERT_TRUE(is_ok(comm.status()));
    all_reduce_later(**comm);
    EXPECT_EQ(cpu_mask(), mine);
  });
}

TEST_F(BindRank, ToANumaNode) {
  in_two_processes([&](Rank rank, const UniqueId& id) {
    auto comm = Communicator::init_rank(2, id, rank, with(rank == 0 ? "numa" : "none"));
    ASSERT_TRUE(is_ok(comm.status()));
    const std::vector<int> now = cpu_mask();
    EXPECT_TRUE(std::includes(before_.begin(), before_.end(), now.begin(), now.end()));
    EXPECT_TRUE(rank == 0 || now == before_) << "each rank's setting is its own";
  });
}

TEST_F(BindRank, OfThreadsMadeTogetherOnlyProgressThreads) {
  if (before_.size() < 2) GTEST_SKIP() << "needs two CPUs";
  report(run_processes_bare(1,
                            [&](Rank) -> Status {
                              auto comms = Communicator::init_all(2, with("core"));
                              RONDO_TRY(comms.status());
                              EXPECT_EQ(cpu_mask(), before_) << "it has no rank of its own";
                              SimpleAllReduce first(*(*comms)[0], 1000), second(*(*comms)[1], 1000);
                              Work a, b;
                              RONDO_TRY(first.start(*(*comms)[0], &a));
                              RONDO_TRY(second.start(*(*comms)[1], &b));
                              RONDO_TRY(a.wait());
                              RONDO_TRY(b.wait());
                              EXPECT_EQ(cpu_mask(), before_);
                              std::map<std::string, int> threads;
                              for (int i = 0; i < 1000000 && (threads = threads_by_mask()).size() < 3; ++i)
                                sched_yield();
                              EXPECT_EQ(threads.size(), 3u)
                                  << "this one, and one progress thread on each of two places";
                              return {};
                            },
                            {}),
         {});
}

}  // namespace
}  // namespace rondo::testing
