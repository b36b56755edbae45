// A communicator of the survivors: after deaths, aborts and timeouts, or without ranks that the callers exclude; and
// larger ones, of old and new ranks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/parts.h"

namespace rondo::testing {

class Shrink : public ::testing::TestWithParam<World> {};

TEST_P(Shrink, AfterAnAbortAllGoOn) {
  Shared<Barrier> all_worked;
  spawn(GetParam(), 4, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    ASSERT_TRUE(all_worked->arrive_and_wait(4, 20));  // no rank may still be in that call when it is aborted
    if (comm.rank() == 2) comm.abort();
    SimpleAllReduce call(comm, 1000);
    EXPECT_EQ(call.start(comm, nullptr).code(), StatusCode::kAborted);
    const Comm made = shrink_or_fail(comm);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->size(), 4);
    EXPECT_EQ(made->rank(), comm.rank());
    EXPECT_TRUE(works(*made));
    EXPECT_EQ(comm.error().code(), StatusCode::kAborted) << "the old one stays as it was";
  });
}

TEST_P(Shrink, WithoutThoseWhoHaveLeft) {
  spawn_owning(GetParam(), 5, [](Comm comm) {
    const Rank r = comm->rank();
    EXPECT_TRUE(works(*comm));
    if (r == 0 || r == 3) return;  // destroys its communicator
    const Comm made = shrink_or_fail(*comm);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(origins(*made, r), (std::vector<Rank>{1, 2, 4}));
    EXPECT_TRUE(works(*made, 100000));
  });
}

TEST_P(Shrink, WithoutThoseWhoAreNamed) {
  Shared<Barrier> all;
  spawn(GetParam(), 5, [&](Communicator& comm) {
    const Rank r = comm.rank();
    EXPECT_TRUE(works(comm));
    if (r != 1 && r != 4) {
      const Comm made = shrink_or_fail(comm, {4, 1, 4});
      ASSERT_NE(made, nullptr);
      EXPECT_EQ(origins(*made, r), (std::vector<Rank>{0, 2, 3}));
      EXPECT_TRUE(works(*made));
      const Comm smaller = made->rank() == 2 ? nullptr : shrink_or_fail(*made, {2});
      if (smaller != nullptr) {
        EXPECT_EQ(smaller->size(), 2);
        EXPECT_TRUE(works(*smaller));
      }
    }
    ASSERT_TRUE(all->arrive_and_wait(5, 30));
    EXPECT_TRUE(works(comm)) << "the old one is as it was";
    const Comm part = split_or_fail(comm, 0, 0);
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), 5);
    EXPECT_TRUE(works(*part));
  });
}

TEST_P(Shrink, DifferentListsAndBadListsAreNamed) {
  Shared<Barrier> all, both;
  SpawnOptions options;
  options.config.init_deadline_s = 20;
  spawn(
      GetParam(), 3,
      [&](Communicator& comm) {
        const Rank r = comm.rank();
        EXPECT_TRUE(fails_with(comm.shrink({3}).status(), StatusCode::kInvalidArgument, {"excluded", "rank 3"}));
        EXPECT_TRUE(fails_with(comm.shrink({-1}).status(), StatusCode::kInvalidArgument, {"excluded", "rank -1"}));
        EXPECT_TRUE(fails_with(comm.shrink({r}).status(), StatusCode::kInvalidArgument, {"excluded", "caller"}));
        ASSERT_TRUE(all->arrive_and_wait(3, 30));
        if (r == 2) return;
        // Rank 0 goes on without rank 1, which does not exclude itself.
        Config config;
        config.init_deadline_s = 2;
        const auto made = r == 0 ? comm.shrink({1, 2}, config) : comm.shrink({2}, config);
        if (r == 1) {
          EXPECT_FALSE(made.ok());
        }
        if (r == 0 && !made.ok()) {  // threads: if rank 1 came first
          EXPECT_TRUE(fails_with(made.status(), StatusCode::kMismatch, {"exclude different ranks"}));
        }
        ASSERT_TRUE(both->arrive_and_wait(2, 30));
      },
      options);
}

TEST_P(Shrink, WhoLivesAndDoesNotComeIsNamedAndMayBeExcludedThen) {
  Shared<SharedCounter> done;
  spawn(GetParam(), 4, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    const Rank r = comm.rank();
    if (r == 1) {
      EXPECT_TRUE(done->wait_at_least(3, 50));
      return;
    }
    Config config;
    config.init_deadline_s = 1;
    EXPECT_TRUE(fails_with(comm.shrink({}, config).status(), StatusCode::kTimeout, {"rank 1", "1 s"}));
    const Comm made = shrink_or_fail(comm, {1});
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(origins(*made, r), (std::vector<Rank>{0, 2, 3}));
    EXPECT_TRUE(works(*made));
    done->add();
  });
}

TEST_P(Shrink, TheTokenEndsTheWait) {
  Shared<SharedCounter> done;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    EXPECT_TRUE(works(comm));
    if (comm.rank() == 1) {
      EXPECT_TRUE(done->wait_at_least(1, 50));
      return;
    }
    Config config;
    config.abort.emplace();
    std::thread raiser([token = *config.abort] { token.raise(); });
    EXPECT_TRUE(fails_with(comm.shrink({}, config).status(), StatusCode::kAborted, {"rank 0", "rank 1"}));
    raiser.join();
    done->add();
  });
}

TEST_P(Shrink, OfASplitAndSplitOfAShrunken) {
  spawn_owning(GetParam(), 6, [](Comm comm) {
    const Rank r = comm->rank();
    Comm half = split_or_fail(*comm, r % 2, 0);
    ASSERT_NE(half, nullptr);
    EXPECT_TRUE(works(*half));
    if (r == 2) return;
    Comm made = shrink_or_fail(*half);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->size(), r % 2 == 0 ? 2 : 3);
    half.reset();
    EXPECT_TRUE(works(*made));
    const Comm part = split_or_fail(*made, made->rank() == 0 ? 0 : 1, 0);
    ASSERT_NE(part, nullptr);
    made.reset();
    EXPECT_TRUE(works(*part));
  });
}

class Grow : public ::testing::TestWithParam<World> {};

/// The id of the new communicator, in memory that old and new ranks share.
struct IdPage {
  UniqueId id;
  SharedCounter written;
};

// `giver`: the old rank that has the id.
inline void expect_grown(World world, Rank giver) {
  Shared<IdPage> page;
  spawn(world, 5, [&](Communicator& comm) {
    // Ranks 0 to 2 are the old communicator; 3 and 4 join it later.
    const Rank r = comm.rank();
    const Comm old = split_or_fail(comm, r < 3 ? 0 : kNoColour, 0);
    Expected<Comm> larger = Status(StatusCode::kInternal, "not called");
    if (old != nullptr) {
      EXPECT_TRUE(works(*old));
      if (r == giver) {
        auto id = Communicator::make_unique_id();
        ASSERT_TRUE(is_ok(id.status()));
        page->id = *id;
        page->written.add();
      }
      larger = old->grow(5, r == giver ? &page->id : nullptr);
    } else {
      ASSERT_TRUE(page->written.wait_at_least(1, 30));
      larger = Communicator::init_rank(5, page->id, r);
    }
    ASSERT_TRUE(is_ok(larger.status()));
    EXPECT_EQ((*larger)->rank(), r);
    EXPECT_EQ((*larger)->size(), 5);
    EXPECT_TRUE(works(**larger));
    if (old != nullptr) {
      EXPECT_TRUE(works(*old));
    }
  });
}

TEST_P(Grow, OldRanksKeepTheirsAndNewcomersFollow) { expect_grown(GetParam(), 0); }
TEST_P(Grow, AnyOldRankMayGiveTheId) { expect_grown(GetParam(), 2); }

TEST_P(Grow, BadArgumentsReachAllRanks) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    const UniqueId id{};
    EXPECT_TRUE(fails_with(comm.grow(comm.rank() == 1 ? 2 : 3, &id).status(), StatusCode::kInvalidArgument,
                           {"new_nranks", "rank 1"}));
    EXPECT_TRUE(fails_with(comm.grow(3, nullptr).status(), StatusCode::kInvalidArgument, {"id", "rank 0"}));
    EXPECT_TRUE(fails_with(comm.grow(3 + comm.rank(), &id).status(), StatusCode::kMismatch, {"rank 0", "rank 1"}));
    EXPECT_TRUE(works(comm));
  });
}

}  // namespace rondo::testing
