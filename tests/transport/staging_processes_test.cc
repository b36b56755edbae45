// Staging memory of communicators whose ranks are processes.
// labels: mp
// timeout: 300
#include <sched.h>
#include <signal.h>

#include "transport/staging_suite.h"

namespace rondo::testing {
namespace {

constexpr double kPatienceS = 60;

/// A reusable barrier for ranks that have no common communicator any more.
struct Turnstile {
  SharedCounter arrived;
  [[nodiscard]] bool pass(uint32_t* times, int parties) {
    arrived.add();
    return arrived.wait_at_least(++*times * static_cast<uint32_t>(parties), kPatienceS);
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
        // Memory of the last rank to leave is freed in its peers' pools when they check.
        const auto all_left_and_looked = [&] {
          const bool left = turnstile->pass(&times, 4);
          (void)pool_usage();
          return left && turnstile->pass(&times, 4);
        };
        ASSERT_TRUE(works_through_slots(parent));
        std::unique_ptr<HeldMemory> before;
        for (int i = 0; i < kTotal; ++i) {
          if (i == kWarmUp) {
            ASSERT_TRUE(all_left_and_looked());
            before = std::make_unique<HeldMemory>();
            ASSERT_TRUE(turnstile->pass(&times, 4));
          }
          auto made = second_communicator(parent);
          ASSERT_TRUE(is_ok(made.status())) << "communicator " << i;
          ASSERT_TRUE(works_through_slots(**made)) << "communicator " << i;
        }
        ASSERT_TRUE(all_left_and_looked());
        expect_no_more(*before, HeldMemory());
        EXPECT_EQ(pool_usage().buried_bytes, 0u);
        ASSERT_TRUE(turnstile->pass(&times, 4));
      },
      options);
}

TEST(StagingOfProcesses, PeersAreMappedOnceForAllCommunicators) {
  Shared<Turnstile> turnstile;
  spawn(World::kProcesses, 3, [&](Communicator& parent) {
    uint32_t times = 0;
    ASSERT_TRUE(turnstile->pass(&times, 3));
    const Mappings before = shared_mappings();
    std::vector<std::unique_ptr<Communicator>> more;
    for (int i = 0; i < 10; ++i) {
      auto made = second_communicator(parent);
      ASSERT_TRUE(is_ok(made.status()));
      more.push_back(std::move(*made));
      ASSERT_TRUE(works_through_slots(*more.back()));
    }
    EXPECT_EQ(shared_mappings().count, before.count);
    EXPECT_EQ(shared_mappings().bytes, before.bytes);
    ASSERT_TRUE(turnstile->pass(&times, 3));
  });
}

TEST(StagingOfProcesses, WhatARankLeftStaysUntilTheLastHasLeft) {
  Shared<Turnstile> turnstile;
  spawn(World::kProcesses, 2, [&](Communicator& parent) {
    uint32_t times = 0;
    auto made = second_communicator(parent);
    ASSERT_TRUE(is_ok(made.status()));
    ASSERT_TRUE(works_through_slots(parent));
    ASSERT_TRUE(turnstile->pass(&times, 2));
    const uint64_t alone_bytes = pool_usage().used_bytes;
    ASSERT_TRUE(works_through_slots(**made));
    ASSERT_TRUE(turnstile->pass(&times, 2));
    if (parent.rank() == 0) made = Status(StatusCode::kInternal, "let go");
    ASSERT_TRUE(turnstile->pass(&times, 2));
    EXPECT_EQ(pool_usage().buried_bytes >= uint64_t{2} << 20, parent.rank() == 0) << "rank 1 may still read it";
    ASSERT_TRUE(turnstile->pass(&times, 2));
    if (parent.rank() == 1) made = Status(StatusCode::kInternal, "let go");
    ASSERT_TRUE(turnstile->pass(&times, 2));
    EXPECT_EQ(pool_usage().buried_bytes, 0u);
    EXPECT_LT(pool_usage().used_bytes, alone_bytes) << "its segment is gone too";
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
        EXPECT_TRUE(made_id->wait_at_least(1, kPatienceS));
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
    ASSERT_EQ(pool_usage().buried_bytes, 0u);
    std::vector<StagingPool::Range> hoard;
    auto pool = StagingPool::acquire();
    ASSERT_TRUE(is_ok(pool.status()));
    constexpr auto kShared = StagingPool::Backing::kShared;
    if (parent.rank() == 2) {
      for (uint64_t bytes = uint64_t{1} << 30; bytes >= 4096; bytes /= 2)
        for (auto r = (*pool)->take(kShared, bytes, StagingPool::Use::kSmall); r.ok();
             r = (*pool)->take(kShared, bytes, StagingPool::Use::kSmall))
          hoard.push_back(*r);
    }
    const Stopwatch watch;
    EXPECT_TRUE(
        fails_with(second_communicator(parent).status(), StatusCode::kExhausted, {"rank 2", "RONDO_POOL_BYTES"}));
    EXPECT_LT(watch.seconds(), 10);
    (*pool)->give_back(hoard);
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
        const Stopwatch watch;  // deaths are checked every 10 ms
        while (pool_usage().buried_bytes != 0 && watch.seconds() < kPatienceS) sched_yield();
        EXPECT_EQ(pool_usage().buried_bytes, 0u);
        EXPECT_LT(pool_usage().used_bytes, with_all_bytes);
        ASSERT_TRUE(turnstile->pass(&times, 2));
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
