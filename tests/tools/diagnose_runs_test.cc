// Four processes fail in all supported ways, and `rondo diagnose` finds the cause from their records.
// labels: mp
// timeout: 180
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "diagnose.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "trace/synthetic_trace.h"

namespace rondo::testing {
namespace {

constexpr int kNumRanks = 4;

struct Diagnosis {
  int exit_status = -1;
  std::string text;
};

Diagnosis diagnose(const std::string& folder) {
  Diagnosis d;
  std::FILE* out = popen((std::string(RONDO_CLI) + " diagnose " + folder + " 2>&1").c_str(), "r");
  char line[4096];
  while (std::fgets(line, sizeof line, out) != nullptr) d.text += line;
  const int status = pclose(out);
  d.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return d;
}

void expect_cause(const Diagnosis& d, const std::string& cause) {
  EXPECT_EQ(d.exit_status, 1) << d.text;
  EXPECT_NE(d.text.find("cause: " + cause), std::string::npos) << "expected: " << cause << "\n" << d.text;
}

/// Environment variables for the ranks, in a scope.
class Environment {
 public:
  explicit Environment(const std::string& folder, bool with_signal = false) {
    setenv("RONDO_FLIGHT", (folder + (with_signal ? ",USR1" : "")).c_str(), 1);
  }
  ~Environment() { unsetenv("RONDO_FLIGHT"); }
};

struct Progress {
  SharedCounter num_started, num_failed, go_on;
};

SpawnOptions short_deadline() {
  SpawnOptions options;
  options.config.deadline_s = kSanitized ? 4 : 1;
  options.deadline_s = 60;
  return options;
}

Status reduce(Communicator& comm, uint64_t count_elems) {
  CallOptions options;
  options.algorithm = "ring";
  SimpleAllReduce call(comm, count_elems);
  return call.start(comm, nullptr, &options);
}

TEST(DiagnoseRuns, ARankThatNeverCalls) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  Shared<Progress> run;
  spawn_processes(
      kNumRanks,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        if (comm.rank() == 2) {
          EXPECT_TRUE(run->num_failed.wait_at_least(3, 40));
          return;
        }
        EXPECT_FALSE(reduce(comm, 100'000).ok());
        run->num_failed.add();
      },
      short_deadline());
  const Diagnosis d = diagnose(folder.path());
  expect_cause(d, "missing call: rank 2");
  EXPECT_NE(d.text.find("has not called #2, all_reduce of 100000 float sum"), std::string::npos) << d.text;
  std::vector<std::string> problems;
  const auto comms = tools::read_flight_records(folder.path(), &problems);
  ASSERT_EQ(comms.size(), 1u);
  EXPECT_EQ(comms[0].ranks[0].host, this_host());
}

TEST(DiagnoseRuns, AMismatch) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  spawn_processes(
      kNumRanks,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        EXPECT_FALSE(reduce(comm, comm.rank() == 1 ? 99'999 : 100'000).ok());
      },
      short_deadline());
  const Diagnosis d = diagnose(folder.path());
  expect_cause(d, "different call:");
  EXPECT_NE(d.text.find("rank 1 calls all_reduce of 99999 float sum"), std::string::npos) << d.text;
}

TEST(DiagnoseRuns, AKilledRank) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  Shared<Progress> run;
  SpawnOptions options = short_deadline();
  options.config.deadline_s = 30;
  options.may_die = {2};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(run->num_started.wait_at_least(5, 40));
    kill(pids[2], SIGKILL);
  };
  spawn_processes(
      kNumRanks,
      [&](Communicator& comm) {
        Status s;
        for (const Stopwatch watch; s.ok() && watch.seconds() < 40;) {
          s = reduce(comm, 10'000);
          if (comm.rank() == 2) run->num_started.add();
        }
        EXPECT_EQ(s.code(), StatusCode::kPeerLost) << s.to_string();
      },
      options);
  expect_cause(diagnose(folder.path()), "dead: rank 2");
}

TEST(DiagnoseRuns, AStoppedRank) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  Shared<Progress> run;
  Diagnosis d;
  SpawnOptions options = short_deadline();
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(run->num_started.wait_at_least(5, 40));
    kill(pids[2], SIGSTOP);
    EXPECT_TRUE(run->num_failed.wait_at_least(3, 40));
    d = diagnose(folder.path());
    kill(pids[2], SIGCONT);
  };
  spawn_processes(
      kNumRanks,
      [&](Communicator& comm) {
        Status s;
        for (const Stopwatch watch; s.ok() && watch.seconds() < 40;) {
          s = reduce(comm, 10'000);
          if (comm.rank() == 2) run->num_started.add();
        }
        EXPECT_FALSE(s.ok());
        if (comm.rank() != 2) run->num_failed.add();
      },
      options);
  expect_cause(d, "stopped: rank 2");
}

bool all_have_written(const std::string& folder, size_t num_files) {
  for (const Stopwatch watch; watch.seconds() < 30;) {
    size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) found += entry.path().extension() == ".json";
    if (found == num_files) return true;
  }
  return false;
}

TEST(DiagnoseRuns, ASignalAsksAllRanksAndHarmsNone) {
  TemporaryFolder folder;
  const Environment environment(folder.path(), true);
  Shared<Progress> run;
  Diagnosis d;
  SpawnOptions options;
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(run->num_started.wait_at_least(kNumRanks, 40));
    for (const pid_t pid : pids) kill(pid, SIGUSR1);
    EXPECT_TRUE(all_have_written(folder.path(), kNumRanks));
    d = diagnose(folder.path());
    run->go_on.add();
  };
  spawn_owning(
      World::kProcesses, kNumRanks,
      [&](std::unique_ptr<Communicator> comm) {
        EXPECT_TRUE(works(*comm));
        run->num_started.add();
        const bool late = comm->rank() == 2;
        EXPECT_TRUE(!late || run->go_on.wait_at_least(1, 40));
        EXPECT_TRUE(is_ok(reduce(*comm, 100'000)));
        comm.reset();
        struct sigaction now;
        ASSERT_EQ(sigaction(SIGUSR1, nullptr, &now), 0);
        EXPECT_EQ(now.sa_handler, SIG_DFL);  // restored
      },
      options);
  expect_cause(d, "missing call: rank 2");
}

TEST(DiagnoseRuns, TwoThatSendToEachOther) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  spawn_processes(
      2,
      [&](Communicator& comm) {
        std::vector<float> data(8 << 20);
        EXPECT_FALSE(comm.send(data.data(), data.size(), Dtype::kFloat32, 1 - comm.rank()).ok());
      },
      short_deadline());
  const Diagnosis d = diagnose(folder.path());
  expect_cause(d, "waiting cycle:");
  EXPECT_NE(d.text.find("waits for space at rank 1"), std::string::npos) << d.text;
  EXPECT_NE(d.text.find("waits for space at rank 0"), std::string::npos) << d.text;
}

TEST(DiagnoseRuns, TwoThatReceiveByTagFromEachOther) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  spawn_processes(
      2,
      [&](Communicator& comm) {
        int x = 0;
        CallOptions options;
        options.match_tags = true;
        options.tag = 8 + static_cast<uint64_t>(comm.rank());
        EXPECT_FALSE(comm.recv(&x, 1, Dtype::kInt32, 1 - comm.rank(), &options).ok());
      },
      short_deadline());
  const Diagnosis d = diagnose(folder.path());
  expect_cause(d, "waiting cycle:");
  EXPECT_NE(d.text.find("recv of 1 int32 from rank 1 with tag 8"), std::string::npos) << d.text;
  EXPECT_NE(d.text.find("recv of 1 int32 from rank 0 with tag 9"), std::string::npos) << d.text;
}

TEST(DiagnoseRuns, TwoCommunicatorsInDifferentOrders) {
  TemporaryFolder folder;
  const Environment environment(folder.path());
  const SpawnOptions options = short_deadline();
  spawn_processes(
      2,
      [&](Communicator& comm) {
        auto second = second_communicator(comm, options.config);
        ASSERT_TRUE(is_ok(second.status()));
        EXPECT_FALSE(reduce(comm.rank() == 0 ? comm : **second, 1000).ok());
      },
      options);
  const Diagnosis d = diagnose(folder.path());
  expect_cause(d, "waiting cycle: across communicators");
  EXPECT_EQ(d.text.find("cause: "), 0u) << "the verdict comes first\n" << d.text;
  EXPECT_EQ(d.text.find("cause: ", 1), std::string::npos) << "and is the only one\n" << d.text;
}

TEST(DiagnoseRuns, NoRecordsIsAnErrorOfItsOwn) {
  TemporaryFolder folder;
  const Diagnosis d = diagnose(folder.path());
  EXPECT_EQ(d.exit_status, 2);
  EXPECT_NE(d.text.find("RONDO_FLIGHT"), std::string::npos) << d.text;
}

TEST(DiagnoseRuns, WithoutAFolderNothingIsWritten) {
  TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  SpawnOptions options = short_deadline();
  spawn_processes(2, [&](Communicator& comm) { EXPECT_FALSE(reduce(comm, comm.rank() == 1 ? 10 : 20).ok()); }, options);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  std::filesystem::current_path("/");
}

}  // namespace
}  // namespace rondo::testing
