// A rank dies or stops during a split: all ranks learn of it, whatever they wait for, with the ranks of the
// communicator that they split.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "api/communicator_impl.h"
#include "api/parts.h"
#include "api/process_control.h"
#include "base/outcome.h"
#include "bootstrap/bootstrap_harness.h"
#include "support/fault_case.h"
#include "support/shared.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

constexpr double kSplitDeadlineS = 40;

// Rank 3 dies when all know where the others' new ports are. Rank 1 has given up and never connects to rank 0, which
// waits for nobody else.
TEST(SplitDeath, AWaitForARankThatHasGivenUpEnds) {
  SharedCounter joined, done;
  const rondo_unique_id id = new_id();
  std::vector<std::thread> threads;
  for (Rank r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      BootstrapOptions how;
      how.deadline_s = kSplitDeadlineS;
      auto b = Bootstrap::join(4, id, r, how);
      ASSERT_OK(b.status());
      joined.add();
      ASSERT_TRUE(joined.wait_at_least(4, kSplitDeadlineS));
      std::vector<std::string> all;
      if (r != 0) {  // takes part as make_child() does, and goes no further
        PeerInfo self = *describe_self(0);
        const auto port = open_mesh_port(&self, false);
        ASSERT_OK(port.status());
        const std::string offer = encode_outcome(Status()) + encode(self);
        ASSERT_OK((*b)->all_gather(offer.data(), offer.size(), &all));
        if (r == 3) return;  // without a goodbye
      } else {
        const auto settings = read_settings({.init_deadline_s = kSplitDeadlineS});
        ASSERT_OK(settings.status());
        ChildOptions options;
        options.settings = *settings;
        ProcessControl control(std::move(*b), options);
        const Stopwatch watch;
        expect_error(control.make_child({0, 1}, options).status(), StatusCode::kPeerLost, {"rank 3"});
        EXPECT_LT(watch.seconds(), kSplitDeadlineS / 2);
      }
      done.add();
      EXPECT_TRUE(done.wait_at_least(3, kSplitDeadlineS));
    });
  for (std::thread& t : threads) t.join();
}

// Rank 1 gives up before rank 0 looks, and rank 2 learns of it. Rank 0 waits only for rank 2 and learns it from there.
TEST(SplitDeath, ARankThatHasHeardOfGivingUpSaysSo) {
  SharedCounter joined, gave_up, done;
  const AbortToken token;
  const rondo_unique_id id = new_id();
  std::vector<std::thread> threads;
  for (Rank r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      BootstrapOptions how;
      how.deadline_s = kSplitDeadlineS;
      auto b = Bootstrap::join(3, id, r, how);
      ASSERT_OK(b.status());
      joined.add();
      ASSERT_TRUE(joined.wait_at_least(3, kSplitDeadlineS));
      const auto settings = read_settings({.init_deadline_s = kSplitDeadlineS});
      ASSERT_OK(settings.status());
      ChildOptions options;
      options.settings = *settings;
      ProcessControl control(std::move(*b), options);
      const std::vector<Rank> members[] = {{2, 0}, {2, 1}, {1, 2}};
      if (r == 0) {
        ASSERT_TRUE(gave_up.wait_at_least(2, kSplitDeadlineS));
      }
      if (r == 1) {
        options.abort = token;
        token.raise();
      }
      const Stopwatch watch;
      expect_error(control.make_child(members[r], options).status(), StatusCode::kAborted, {"rank 1"});
      EXPECT_LT(watch.seconds(), kSplitDeadlineS / 2);
      gave_up.add();
      done.add();
      EXPECT_TRUE(done.wait_at_least(3, kSplitDeadlineS));
    });
  for (std::thread& t : threads) t.join();
}

// The action of a rank when its part's transport exists.
using Deed = void (*)();

// Splits four ranks into rank 0 and, in reverse order, ranks 3, 2 and 1. `victim` runs the deed during the split.
// Returns when all others are back and have `judge`d their results.
void split_with_victim(World world, Rank victim, Deed deed, double deadline_s,
                       const std::function<void(const Status&)>& judge) {
  Shared<SharedCounter> split, done;
  IdPipes ids(4);
  SpawnOptions options;
  options.may_die = {victim};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(done->wait_at_least(3, kSplitDeadlineS));
    kill(pids[static_cast<size_t>(victim)], SIGKILL);
  };
  const auto results = run_processes_bare(
      4,
      [&](Rank rank) -> Status {
        bool armed = false;
        const TransportDecorator decorate = [&](Rank, int, std::unique_ptr<Transport> real) {
          if (armed && rank == victim) deed();
          return real;
        };
        Config config;
        if (world == World::kTcp) config.settings = "transport = tcp\n";
        RONDO_TRY_ASSIGN(const UniqueId id, ids.exchange(rank));
        RONDO_TRY_ASSIGN(const Comm comm, init_rank_with(decorate, 4, id, rank, config));
        EXPECT_TRUE(works(*comm));
        armed = true;
        split->add();
        EXPECT_TRUE(split->wait_at_least(4, kSplitDeadlineS));
        config.init_deadline_s = deadline_s;
        judge(comm->split(rank == 0 ? 0 : 1, -rank, config).status());
        done->add();
        EXPECT_TRUE(done->wait_at_least(3, kSplitDeadlineS));
        return {};
      },
      options);
  report(results, options);
}

class SplitDeaths : public ::testing::TestWithParam<World> {};

TEST_P(SplitDeaths, ADeathEndsTheSplitOfAllGroups) {
  split_with_victim(
      GetParam(), 3, [] { kill(getpid(), SIGKILL); }, kSplitDeadlineS,
      [](const Status& s) {
        EXPECT_TRUE(fails_with(s, StatusCode::kPeerLost, {"split", "rank 3"}));
      });
}

TEST_P(SplitDeaths, AStoppedRankIsNamedByTheNumbersOfTheParent) {
  // Rank 3 is rank 0 of its part. The part's ranks 1 and 2 are ranks 2 and 1.
  split_with_victim(
      GetParam(), 3, [] { kill(getpid(), SIGSTOP); }, 2,
      [](const Status& s) {
        EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"split", "waiting for rank 3"}));
      });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SplitDeaths, ::testing::Values(World::kProcesses, World::kTcp),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace
}  // namespace rondo::testing
