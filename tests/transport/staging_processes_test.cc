// Staging memory of communicators whose ranks are processes.
// labels: mp
// timeout: 300
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "transport/staging_suite.h"

namespace rondo::testing {
namespace {

constexpr double kDeadlineS = 60;

/// A reusable barrier for ranks that have no common communicator any more.
struct Turnstile {
  SharedCounter arrived;
  [[nodiscard]] bool pass(uint32_t* times, int parties) {
    arrived.add();
    return arrived.wait_at_least(++*times * static_cast<uint32_t>(parties), kDeadlineS);
  }
};

TEST(StagingOfProcesses, ManyCommunicatorsLeaveNothingBehind) {
  constexpr int kWarmUp = 10, kTotal = kSanitized ? 40 : 310;
  Shared<Turnstile> turnstile;
  SpawnOptions options;
  options.deadline_s = 200;
  spawn(
      World::kProcesses, 4,
      [&](Communicator& parent) {
        uint32_t times = 0;
        ASSERT_TRUE(works_through_slots(parent));
        std::unique_ptr<HeldMemory> before;
        for (int i = 0; i < kTotal; ++i) {
          if (i == kWarmUp) {
            ASSERT_TRUE(turnstile->pass(&times, 4));
            before = std::make_unique<HeldMemory>();
            ASSERT_TRUE(turnstile->pass(&times, 4));
          }
          auto made = second_communicator(parent);
          ASSERT_TRUE(is_ok(made.status())) << "communicator " << i;
          ASSERT_TRUE(works_through_slots(**made)) << "communicator " << i;
        }
        ASSERT_TRUE(turnstile->pass(&times, 4));
        expect_no_more(*before, HeldMemory());
        ASSERT_TRUE(turnstile->pass(&times, 4));
      },
      options);
}

size_t num_staging_mappings() {
  size_t n = 0;
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) n += line.find("memfd:rondo") != std::string::npos;
  return n;
}

// A part of each may have huge pages: then the kernel counts two.
TEST(StagingOfProcesses, OneMappingServesSixteenRanks) {
  for (const int nranks : {3, 18}) {
    Shared<Turnstile> turnstile;
    spawn(World::kProcesses, nranks, [&](Communicator& parent) {
      uint32_t times = 0;
      const size_t before = num_staging_mappings(), most = nranks > 16 ? 4 : 2;
      EXPECT_GE(before, most / 2);
      EXPECT_LE(before, most);
      auto made = second_communicator(parent);
      ASSERT_TRUE(is_ok(made.status()));
      ASSERT_TRUE(works_through_slots(**made));
      EXPECT_EQ(num_staging_mappings(), 2 * before);
      ASSERT_TRUE(turnstile->pass(&times, nranks));
      made = Status(StatusCode::kInternal, "let go");
      EXPECT_EQ(num_staging_mappings(), before);
      ASSERT_TRUE(turnstile->pass(&times, nranks));
      ASSERT_TRUE(works_through_slots(parent, "two_shot")) << "across files, if there are two";
    });
  }
}

TEST(StagingOfProcesses, ARankThatDepartsGivesItsBytesBack) {
  Shared<Turnstile> turnstile;
  spawn(World::kProcesses, 2, [&](Communicator& parent) {
    uint32_t times = 0;
    ASSERT_TRUE(works_through_slots(parent));
    ASSERT_TRUE(turnstile->pass(&times, 2));
    const uint64_t alone_bytes = pool_usage().used_bytes;
    auto made = second_communicator(parent);
    ASSERT_TRUE(is_ok(made.status()));
    ASSERT_TRUE(works_through_slots(**made));
    EXPECT_GE(pool_usage().used_bytes, alone_bytes + (uint64_t{2} << 20));
    ASSERT_TRUE(turnstile->pass(&times, 2));
    for (const Rank leaves : {0, 1}) {
      if (parent.rank() == leaves) made = Status(StatusCode::kInternal, "let go");
      ASSERT_TRUE(turnstile->pass(&times, 2));
      EXPECT_EQ(pool_usage().used_bytes == alone_bytes, parent.rank() <= leaves);
      ASSERT_TRUE(turnstile->pass(&times, 2));
    }
    ASSERT_TRUE(works_through_slots(parent));
  });
}

TEST(StagingOfProcesses, AForkedChildHoldsNothing) {
  spawn(World::kProcesses, 2, [&](Communicator& parent) {
    ASSERT_TRUE(works_through_slots(parent));
    const pid_t child = fork();
    if (child == 0) {
      if (num_staging_mappings() != 0) _exit(1);
      for (const std::string& open : open_descriptors())
        if (open.find("memfd:rondo") != std::string::npos) _exit(2);
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    ASSERT_TRUE(works_through_slots(parent));
  });
}

TEST(StagingOfProcesses, AFullPoolOfOneRankIsNamedToAll) {
  SpawnOptions options;
  options.deadline_s = 100;
  Shared<Turnstile> turnstile;
  Shared<UniqueId> id;
  Shared<SharedCounter> made_id;
  const auto results = run_processes_bare(
      3,
      [&](Rank rank) -> Status {
        if (rank == 1) setenv("RONDO_POOL_BYTES", "16M", 1);
        if (rank == 0) {
          RONDO_TRY_ASSIGN(*id, Communicator::make_unique_id());
          made_id->add();
        }
        EXPECT_TRUE(made_id->wait_at_least(1, kDeadlineS));
        RONDO_TRY_ASSIGN(auto parent, Communicator::init_rank(3, *id, rank));
        // Make communicators until rank 1's 14 MiB of slots are used up.
        std::vector<std::unique_ptr<Communicator>> more;
        Status end;
        for (int i = 0; i < 30 && end.ok(); ++i) {
          RONDO_TRY_ASSIGN(auto made, second_communicator(*parent));
          CallOptions ring;
          ring.algorithm = "ring";
          SimpleAllReduce call(*made, 20000);
          end = call.start(*made, nullptr, &ring);
          EXPECT_EQ(end.ok() ? call.judge() : "", "");
          more.push_back(std::move(made));
        }
        const StatusCode expected = rank == 1 ? StatusCode::kExhausted : StatusCode::kAborted;
        EXPECT_TRUE(fails_with(end, expected, {"rank 1", "RONDO_POOL_BYTES", "16 MiB"}));
        uint32_t times = 0;
        EXPECT_TRUE(turnstile->pass(&times, 3));
        more.clear();
        EXPECT_TRUE(turnstile->pass(&times, 3));
        RONDO_TRY_ASSIGN(auto again, second_communicator(*parent));
        EXPECT_TRUE(works_through_slots(*again)) << "there is room again";
        EXPECT_TRUE(works(*parent));
        return Status();
      },
      options);
  report(results, options);
}

TEST(StagingOfProcesses, ACommunicatorThatDoesNotFitIsRefusedOnAllRanks) {
  Shared<Turnstile> turnstile;
  spawn(World::kProcesses, 3, [&](Communicator& parent) {
    uint32_t times = 0;
    ASSERT_TRUE(is_ok(second_communicator(parent).status()));  // makes the parent's connections for the next one
    ASSERT_TRUE(turnstile->pass(&times, 3));
    auto pool = StagingPool::acquire();
    ASSERT_TRUE(is_ok(pool.status()));
    const uint64_t hoard_bytes = parent.rank() == 2 ? pool_usage().size_bytes - pool_usage().used_bytes : 0;
    ASSERT_TRUE(is_ok((*pool)->charge(hoard_bytes)));
    const Stopwatch watch;
    EXPECT_TRUE(
        fails_with(second_communicator(parent).status(), StatusCode::kExhausted, {"rank 2", "RONDO_POOL_BYTES"}));
    EXPECT_LT(watch.seconds(), 10);
    (*pool)->discharge(hoard_bytes);
    auto made = second_communicator(parent);
    ASSERT_TRUE(is_ok(made.status()));
    EXPECT_TRUE(works_through_slots(**made));
  });
}

// Rank 2 is killed while it works in a communicator of all. Ranks 0 and 1 go on in their own communicators, with memory
// that the dead one's communicator has freed.
TEST(StagingOfProcesses, AKilledRankDoesNotHoldItsPeersMemory) {
  Shared<Turnstile> turnstile;
  SpawnOptions options;
  options.may_die = {2};
  spawn_owning(
      World::kProcesses, 3,
      [&](std::unique_ptr<Communicator> all) {
        UniqueId mine{};
        std::vector<UniqueId> ids(3);
        if (all->rank() == 0) mine = *Communicator::make_unique_id();
        ASSERT_TRUE(is_ok(all->all_gather(&mine, ids.data(), sizeof mine, Dtype::kUint8)));
        ASSERT_TRUE(works_through_slots(*all));
        if (all->rank() == 2) {
          ASSERT_TRUE(works_through_slots(*all));
          kill(getpid(), SIGKILL);
        }
        auto pair = Communicator::init_rank(2, ids[0], all->rank());
        ASSERT_TRUE(is_ok(pair.status()));
        ASSERT_TRUE(works_through_slots(**pair));
        ASSERT_TRUE(works_through_slots(*all));
        Status end;
        while (end.ok()) end = SimpleAllReduce(*all, 20000).start(*all, nullptr);
        EXPECT_TRUE(fails_with(end, StatusCode::kPeerLost, {"rank 2"}));
        uint32_t times = 0;
        const uint64_t with_all_bytes = pool_usage().used_bytes;
        all.reset();
        ASSERT_TRUE(turnstile->pass(&times, 2));
        for (int i = 0; i < 20; ++i) {
          auto made = second_communicator(**pair);
          ASSERT_TRUE(is_ok(made.status()));
          ASSERT_TRUE(works_through_slots(**made));
          ASSERT_TRUE(works(**made, 30));
        }
        ASSERT_TRUE(turnstile->pass(&times, 2));
        EXPECT_LT(pool_usage().used_bytes, with_all_bytes);
        ASSERT_TRUE(turnstile->pass(&times, 2));
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
