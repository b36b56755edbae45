// Real launches: this binary as ranks under Open MPI's mpirun and MPICH's mpiexec, and with rondo's variables.
// labels: mp
// timeout: 120
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/bootstrap_harness.h"
#include "launch/launch.h"
#include "support/launchers.h"

namespace rondo {
namespace {

std::string self() {
  char path[4096] = {};
  return ::readlink("/proc/self/exe", path, sizeof(path) - 1) > 0 ? path : "";
}

testing::Launched launch(const std::string& prefix) {
  return testing::run_command(prefix + " '" + self() +
                              "' --gtest_also_run_disabled_tests --gtest_filter=LaunchedRank.DISABLED_Joins");
}

// All ranks must have joined under the expected launcher, and none may be left running.
void check_ranks(const testing::Launched& launched, int nranks, const std::string& launcher) {
  EXPECT_EQ(launched.exit_status, 0) << launched.output;
  std::set<int> ranks;
  size_t at = 0;
  while ((at = launched.output.find("joined: rank ", at)) != std::string::npos) {
    int rank, of, pid;
    char by[64] = {};
    ASSERT_EQ(std::sscanf(launched.output.c_str() + at, "joined: rank %d of %d pid %d by %63[^.]", &rank, &of, &pid, by), 4);
    EXPECT_EQ(of, nranks);
    EXPECT_EQ(by, launcher);
    ranks.insert(rank);
    EXPECT_TRUE(testing::eventually(5, [&] { return ::kill(pid, 0) != 0 && errno == ESRCH; })) << "left over: " << pid;
    ++at;
  }
  EXPECT_EQ(ranks.size(), static_cast<size_t>(nranks)) << launched.output;
}

// Runs only in the launched processes.
TEST(LaunchedRank, DISABLED_Joins) {
  const auto info = launch_from_environment();
  ASSERT_OK(info.status());
  const int rounds = info->launcher == "rondo" ? 1 : 2;  // an id in the environment serves once
  for (int round = 0; round < rounds; ++round) {
    auto b = join_from_environment({.deadline_s = 60});
    ASSERT_OK(b.status());
    std::vector<std::string> all;
    const std::string mine = std::to_string((*b)->rank());
    ASSERT_OK((*b)->all_gather(mine.data(), mine.size(), &all));
    for (Rank r = 0; r < (*b)->nranks(); ++r) EXPECT_EQ(all[r], std::to_string(r));
    ASSERT_OK((*b)->barrier());
    (*b)->say_goodbye();
  }
  // One write, so that lines of several ranks do not mix.
  const std::string line = "\njoined: rank " + std::to_string(info->rank) + " of " + std::to_string(info->nranks) +
                           " pid " + std::to_string(::getpid()) + " by " + info->launcher + ".\n";
  ASSERT_EQ(::write(STDOUT_FILENO, line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

void check_launcher(const testing::MpiLauncher& mpi) {
  if (!testing::installed(mpi.program)) GTEST_SKIP() << mpi.name << "'s " << mpi.program << " is not installed";
  check_ranks(launch(mpi.ranks(3)), 3, mpi.name);
}
TEST(LaunchMpi, OpenMpi) { check_launcher(testing::kOpenMpi); }
TEST(LaunchMpi, Mpich) { check_launcher(testing::kMpich); }

// A shell between the launcher and the ranks must not split the job.
TEST(LaunchMpi, MpichThroughAShell) {
  if (!testing::installed("mpiexec.hydra")) GTEST_SKIP() << "MPICH's mpiexec.hydra is not installed";
  check_ranks(launch("mpiexec.hydra -n 3 /bin/sh -c '\"$@\"; exit $?' sh"), 3, "MPICH");
}

TEST(LaunchMpi, RondosOwnVariables) {
  const std::string id = unique_id_to_hex(testing::new_id());
  std::vector<testing::Child> children;
  for (int r = 0; r < 3; ++r)
    children.emplace_back([&, r] {
      const testing::Launched l = launch("RONDO_RANK=" + std::to_string(r) + " RONDO_NRANKS=3 RONDO_UNIQUE_ID=" + id);
      return l.exit_status == 0 ? l.output : "failed: " + l.output;
    });
  testing::Launched all{0, ""};
  for (testing::Child& c : children) all.output += c.join();
  EXPECT_EQ(all.output.find("failed: "), std::string::npos) << all.output;
  check_ranks(all, 3, "rondo");
}

}  // namespace
}  // namespace rondo
