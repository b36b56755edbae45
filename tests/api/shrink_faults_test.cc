// Processes are killed. The survivors shrink and go on, even if more die during the shrink, at any moment.
// labels: mp
// timeout: 240
// again with: RONDO_TEST_FULL_MESH=3
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>

#include "api/parts.h"

namespace rondo::testing {
namespace {

struct Shrunken {
  std::atomic<double> killed_at_s{0};
  std::atomic<double> known_at_s{0};   // the last survivor has its error
  std::atomic<double> shrunk_at_s{0};  // the last one has the new communicator
  std::atomic<double> summed_at_s{0};  // the last one has finished its first all-reduce
  SharedCounter num_ready, num_done;
};

void keep_most(std::atomic<double>& most, double value) {
  for (double seen = most; seen < value && !most.compare_exchange_weak(seen, value);) {
  }
}

// All-reduces until the death shows.
Status until_an_error(Communicator& comm) {
  const Stopwatch watch;
  Status status;
  while (status.ok() && watch.seconds() < 30) {
    SimpleAllReduce call(comm, 1 << 16);
    status = call.start(comm, nullptr);
  }
  return status;
}

TEST(ShrinkFaults, SurvivorsOfADeathGoOn) {
  constexpr int kRounds = kSanitized ? 3 : 10;
  std::vector<double> known, shrunk, summed;
  for (int round = 0; round < kRounds; ++round) {
    const Rank victim = round % 4;
    Shared<Shrunken> run;
    SpawnOptions options;
    options.may_die = {victim};
    options.in_parent = [&](const std::vector<pid_t>& pids) {
      EXPECT_TRUE(run->num_ready.wait_at_least(4, 30));
      run->killed_at_s = now_s();
      kill(pids[static_cast<size_t>(victim)], SIGKILL);
    };
    spawn_processes(
        4,
        [&](Communicator& comm) {
          EXPECT_TRUE(works(comm));
          run->num_ready.add();
          EXPECT_TRUE(fails_with(until_an_error(comm), StatusCode::kPeerLost, {"rank " + std::to_string(victim)}));
          keep_most(run->known_at_s, now_s());
          const Comm made = shrink_or_fail(comm);
          ASSERT_NE(made, nullptr);
          keep_most(run->shrunk_at_s, now_s());
          EXPECT_EQ(made->size(), 3);
          EXPECT_EQ(made->rank(), comm.rank() - (comm.rank() > victim ? 1 : 0));
          EXPECT_TRUE(works(*made, 1 << 18));  // 1 MiB
          keep_most(run->summed_at_s, now_s());
          EXPECT_TRUE(works(*made));
        },
        options);
    known.push_back(run->known_at_s - run->killed_at_s);
    shrunk.push_back(run->shrunk_at_s - run->known_at_s);
    summed.push_back(run->summed_at_s - run->shrunk_at_s);
  }
  for (auto* times : {&known, &shrunk, &summed}) std::sort(times->begin(), times->end());
  auto range = [](const std::vector<double>& sorted) {
    char text[64];
    std::snprintf(text, sizeof text, "%.1f (%.1f to %.1f) ms", sorted[sorted.size() / 2] * 1e3, sorted.front() * 1e3,
                  sorted.back() * 1e3);
    return std::string(text);
  };
  // Measured, not judged: the machine may be busy.
  std::printf("death known to all: %s; shrink: %s; first all-reduce of 1 MiB: %s\n", range(known).c_str(),
              range(shrunk).c_str(), range(summed).c_str());
}

// A second rank dies during the shrink. The final survivors have one communicator.
TEST(ShrinkFaults, DeathsDuringTheShrink) {
  constexpr int kRounds = kSanitized ? 10 : 60;
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    Shared<Shrunken> run;
    SpawnOptions options;
    options.may_die = {1, 3};
    const auto delay_us = static_cast<int>(random() % 2500);
    SCOPED_TRACE("round " + std::to_string(round) + ", second death after " + std::to_string(delay_us) + " us");
    options.in_parent = [&](const std::vector<pid_t>& pids) {
      EXPECT_TRUE(run->num_ready.wait_at_least(5, 30));
      kill(pids[1], SIGKILL);
      EXPECT_TRUE(run->num_done.wait_at_least(1, 30));  // the first survivor begins to shrink
      for (const Stopwatch watch; watch.seconds() * 1e6 < delay_us;) {
      }
      kill(pids[3], SIGKILL);
    };
    spawn_processes(
        5,
        [&](Communicator& comm) {
          EXPECT_TRUE(works(comm));
          run->num_ready.add();
          EXPECT_FALSE(until_an_error(comm).ok());
          run->num_done.add();
          const Rank r = comm.rank();
          Comm made = shrink_or_fail(comm);
          // Rank 3 may have died after all had agreed on it: then its death shows in the new communicator.
          while (made != nullptr && made->size() > 3) {
            EXPECT_EQ(until_an_error(*made).code(), StatusCode::kPeerLost);
            made = shrink_or_fail(*made);
          }
          ASSERT_NE(made, nullptr);
          EXPECT_EQ(origins(*made, r), (std::vector<Rank>{0, 2, 4}));
          EXPECT_TRUE(works(*made, 1 << 18));
        },
        options);
    if (HasFailure()) break;
  }
}

TEST(ShrinkFaults, TheLastOneIsACommunicatorOfItsOwn) {
  Shared<Shrunken> run;
  SpawnOptions options;
  options.may_die = {0, 1, 3};
  options.in_parent = [&](const std::vector<pid_t>& pids) {
    EXPECT_TRUE(run->num_ready.wait_at_least(4, 30));
    for (const Rank r : options.may_die) kill(pids[static_cast<size_t>(r)], SIGKILL);
  };
  spawn_processes(
      4,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        run->num_ready.add();
        EXPECT_FALSE(until_an_error(comm).ok());
        Comm made = shrink_or_fail(comm);
        while (made != nullptr && made->size() > 1) {
          EXPECT_FALSE(until_an_error(*made).ok());
          made = shrink_or_fail(*made);
        }
        ASSERT_NE(made, nullptr);
        EXPECT_TRUE(works(*made));
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
