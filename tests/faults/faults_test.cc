// A rank is killed during operations. The others learn within a second which rank is lost, and nothing is left behind:
// no process, no name in /dev/shm or /tmp, no descriptor.
//
// The parent kills the victim when a shared count of finished calls reaches a random number.
// labels: mp
// timeout: 180
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

constexpr int kNumRanks = 4;
constexpr double kNoticeDeadline_s = kSanitized ? 5 : 1;

struct Fault {
  SharedCounter num_calls;  // of the victim
  SharedCounter num_noticed;
  std::atomic<double> killed_at_s{0};
};

struct FaultCase {
  Collective collective;
  const char* algorithm;
  uint64_t count_elems;
};
std::string name_of(const FaultCase& c) {
  return std::string(collective_name(c.collective)) + "_" + c.algorithm + "_" + std::to_string(c.count_elems);
}

Status call(Communicator& comm, const FaultCase& c, std::vector<float>& in, std::vector<float>& out, Work* work) {
  CallOptions options;
  options.algorithm = c.algorithm;
  switch (c.collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(in.data(), out.data(), c.count_elems, Dtype::kFloat32, Op::kSum, &options, work);
    case Collective::kReduceScatter:
      return comm.reduce_scatter(in.data(), out.data(), c.count_elems, Dtype::kFloat32, Op::kSum, &options, work);
    case Collective::kAllGather:
      return comm.all_gather(in.data(), out.data(), c.count_elems, Dtype::kFloat32, &options, work);
    default: return Status(StatusCode::kInternal, "no fault case has this collective");
  }
}

// Calls until an error comes, and checks that error.
void survive(Communicator& comm, const FaultCase& c, Rank victim, Fault& fault) {
  const uint64_t room = c.count_elems * kNumRanks;
  std::vector<float> in(room), out(room);
  const Stopwatch watch;
  Status status;
  while (status.ok() && watch.seconds() < 30) {
    status = call(comm, c, in, out, nullptr);
    if (comm.rank() == victim) fault.num_calls.add();
  }
  const double noticed_after_s = now_s() - fault.killed_at_s;
  EXPECT_TRUE(fails_with(status, StatusCode::kPeerLost, {"rank " + std::to_string(victim)}));
  EXPECT_LT(noticed_after_s, kNoticeDeadline_s) << status.to_string();
  EXPECT_EQ(comm.error().code(), StatusCode::kPeerLost);
  EXPECT_FALSE(call(comm, c, in, out, nullptr).ok()) << "the communicator refuses work after the loss";
  fault.num_noticed.add();
}

// Waits until the victim has made this many calls, then kills it.
SpawnOptions killing(Rank victim, uint32_t after_calls, Fault& fault) {
  SpawnOptions options;
  options.deadline_s = 40;
  options.may_die = {victim};
  options.in_parent = [=, &fault](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(fault.num_calls.wait_at_least(after_calls, 20)) << "the victim did not come so far";
    fault.killed_at_s = now_s();
    EXPECT_EQ(kill(pids[static_cast<size_t>(victim)], SIGKILL), 0);
  };
  return options;
}

class KilledRank : public ::testing::TestWithParam<FaultCase> {};

TEST_P(KilledRank, IsNamedByTheOthersWithinASecond) {
  constexpr int kRepetitions = kSanitized ? 3 : 10;
  std::mt19937 random(static_cast<unsigned>(GetParam().count_elems));
  const std::set<std::string> descriptors = open_descriptors();
  for (int i = 0; i < kRepetitions; ++i) {
    const auto victim = static_cast<Rank>(random() % kNumRanks);
    const auto after_calls = static_cast<uint32_t>(random() % 40);
    SCOPED_TRACE("repetition " + std::to_string(i) + ", victim " + std::to_string(victim) + " after " +
                 std::to_string(after_calls) + " calls");
    Shared<Fault> fault;
    spawn_processes(
        kNumRanks, [&](Communicator& comm) { survive(comm, GetParam(), victim, *fault); },
        killing(victim, after_calls, *fault));
    EXPECT_EQ(fault->num_noticed.value(), static_cast<uint32_t>(kNumRanks - 1));
    if (HasFailure()) break;
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

INSTANTIATE_TEST_SUITE_P(Faults, KilledRank,
                         ::testing::Values(FaultCase{Collective::kAllReduce, "ring", 1 << 20},
                                           FaultCase{Collective::kAllReduce, "two_shot", 1 << 20},
                                           FaultCase{Collective::kAllReduce, "one_shot", 1 << 18},
                                           FaultCase{Collective::kAllReduce, "one_shot", 2},
                                           FaultCase{Collective::kAllReduce, "tree", 1 << 18},
                                           FaultCase{Collective::kAllReduce, "recursive_doubling", 1 << 18},
                                           FaultCase{Collective::kReduceScatter, "ring", 1 << 18},
                                           FaultCase{Collective::kReduceScatter, "two_shot", 1 << 18},
                                           FaultCase{Collective::kAllGather, "ring", 1 << 18},
                                           FaultCase{Collective::kAllGather, "one_shot", 1 << 18}),
                         [](const auto& info) { return name_of(info.param); });

TEST(Faults, DeathIsNoticedByAsynchronousWork) {
  constexpr Rank kVictim = 2;
  Shared<Fault> fault;
  spawn_processes(
      3,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        fault->num_calls.add();
        if (comm.rank() == kVictim) {  // makes no more calls
          EXPECT_TRUE(fault->num_noticed.wait_at_least(3, 30));
          return;
        }
        SimpleAllReduce call(comm, 1000);
        Work work;
        ASSERT_TRUE(is_ok(call.start(comm, &work)));
        EXPECT_TRUE(fails_with(work.wait(), StatusCode::kPeerLost, {"rank " + std::to_string(kVictim)}));
        EXPECT_LT(now_s() - fault->killed_at_s, kNoticeDeadline_s);
      },
      killing(kVictim, 3, *fault));
}

TEST(Faults, DeathIsNoticedWithinASecondWhateverTheDeadline) {
  constexpr Rank kVictim = 0;  // the rank that made the unique id
  Shared<Fault> fault;
  SpawnOptions options = killing(kVictim, 3, *fault);
  options.config.deadline_s = 3600;
  spawn_processes(
      3,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        fault->num_calls.add();
        if (comm.rank() == kVictim) {
          EXPECT_TRUE(fault->num_noticed.wait_at_least(3, 30));
          return;
        }
        SimpleAllReduce call(comm, 100000);
        EXPECT_TRUE(fails_with(call.start(comm, nullptr), StatusCode::kPeerLost, {"rank 0"}));
        EXPECT_LT(now_s() - fault->killed_at_s, kNoticeDeadline_s);
      },
      options);
}

TEST(Faults, TheFirstOfTwoDeathsIsEnough) {
  Shared<Fault> fault;
  SpawnOptions options = killing(1, 10, *fault);
  options.may_die = {1, 2};
  options.in_parent = [&fault, kill_first = options.in_parent](const std::vector<pid_t>& pids) {
    kill_first(pids);
    kill(pids[2], SIGKILL);
  };
  spawn_processes(
      4,
      [&](Communicator& comm) {
        const FaultCase c{Collective::kAllReduce, "ring", 1 << 18};
        std::vector<float> in(c.count_elems), out(c.count_elems);
        const Stopwatch watch;
        Status status;
        while (status.ok() && watch.seconds() < 30) {
          status = call(comm, c, in, out, nullptr);
          if (comm.rank() == 1) fault->num_calls.add();
        }
        EXPECT_TRUE(fails_with(status, StatusCode::kPeerLost, {"rank "}));
        EXPECT_LT(now_s() - fault->killed_at_s, kNoticeDeadline_s);
      },
      options);
}

TEST(Faults, ANewCommunicatorOfTheSurvivorsWorks) {
  Shared<Fault> fault;
  int id_pipe[2];
  ASSERT_EQ(pipe(id_pipe), 0);
  spawn_processes(
      3,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        fault->num_calls.add();
        SimpleAllReduce call(comm, 1000);
        if (comm.rank() == 1) {
          EXPECT_TRUE(fault->num_noticed.wait_at_least(3, 30));
          return;
        }
        ASSERT_TRUE(fails_with(call.start(comm, nullptr), StatusCode::kPeerLost, {"rank 1"}));
        UniqueId id{};
        if (comm.rank() == 0) {
          auto made = Communicator::make_unique_id();
          ASSERT_TRUE(is_ok(made.status()));
          id = *made;
          ASSERT_EQ(write(id_pipe[1], &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
        } else {
          ASSERT_EQ(read(id_pipe[0], &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
        }
        auto survivors = Communicator::init_rank(2, id, comm.rank() == 0 ? 0 : 1);
        ASSERT_TRUE(is_ok(survivors.status()));
        EXPECT_TRUE(works(**survivors));
      },
      killing(1, 3, *fault));
  close(id_pipe[0]);
  close(id_pipe[1]);
}

TEST(Faults, NoNamesStayInSharedDirectories) {
  const std::set<std::string> before = shared_names();
  Shared<Fault> fault;
  spawn_processes(
      kNumRanks,
      [&](Communicator& comm) {
        ASSERT_TRUE(is_ok(comm.alloc(1 << 20).status()));
        survive(comm, {Collective::kAllReduce, "two_shot", 1 << 18}, 3, *fault);
      },
      killing(3, 5, *fault));
  std::set<std::string> left;
  for (const std::string& name : shared_names())
    if (before.count(name) == 0) left.insert(name);
  // Another program's names come and go; leftovers of this run would stay.
  const Stopwatch watch;
  while (!left.empty() && watch.seconds() < 5)
    std::erase_if(left, [](const std::string& name) { return access(name.c_str(), F_OK) != 0; });
  for (const std::string& name : left) ADD_FAILURE() << "left behind: " << name;
}

}  // namespace
}  // namespace rondo::testing
