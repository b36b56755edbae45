// Communicators made by splitting: members and order, many of them, splits of splits, any order of destruction; each
// rank's error if one does not take part; and the end of a communicator's work.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/parts.h"
#include "support/process_state.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class Split : public ::testing::TestWithParam<World> {};

TEST_P(Split, GroupsByColourAndOrdersByKeyAndRank) {
  spawn(GetParam(), 7, [](Communicator& comm) {
    const Rank r = comm.rank();
    const Comm forward = split_or_fail(comm, r % 2, 0);
    ASSERT_NE(forward, nullptr);
    EXPECT_EQ(origins(*forward, r), r % 2 == 0 ? (std::vector<Rank>{0, 2, 4, 6}) : (std::vector<Rank>{1, 3, 5}));
    EXPECT_EQ(forward->rank(), r / 2);
    const Comm backward = split_or_fail(comm, r / 4 + 100, -r);
    ASSERT_NE(backward, nullptr);
    EXPECT_EQ(origins(*backward, r), r < 4 ? (std::vector<Rank>{3, 2, 1, 0}) : (std::vector<Rank>{6, 5, 4}));
    const Comm same = split_or_fail(comm, 5, r == 3 ? -1 : 7);
    ASSERT_NE(same, nullptr);
    EXPECT_EQ(origins(*same, r), (std::vector<Rank>{3, 0, 1, 2, 4, 5, 6}));
    for (Communicator* c : {&comm, forward.get(), backward.get(), same.get()}) {
      EXPECT_TRUE(works(*c));
      EXPECT_TRUE(works(*c, 300000));
    }
  });
}

TEST_P(Split, NoColourTakesPartAndGetsNothing) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    const Comm part = split_or_fail(comm, comm.rank() == 1 ? kNoColour : 0, 0);
    EXPECT_EQ(part == nullptr, comm.rank() == 1);
    if (part != nullptr) {
      EXPECT_EQ(part->size(), 3);
      EXPECT_TRUE(works(*part));
    }
    EXPECT_EQ(split_or_fail(comm, kNoColour, comm.rank()), nullptr);
    const Comm alone = split_or_fail(comm, comm.rank(), 0);
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_TRUE(works(*alone));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Split, OfASplitOfASplit) {
  spawn(GetParam(), 8, [](Communicator& comm) {
    std::vector<Comm> levels;
    for (Communicator* at = &comm; at->size() > 1; at = levels.back().get()) {
      levels.push_back(split_or_fail(*at, at->rank() < at->size() / 2 ? 0 : 1, 0));
      ASSERT_NE(levels.back(), nullptr);
      EXPECT_EQ(levels.back()->size(), at->size() / 2);
    }
    ASSERT_EQ(levels.size(), 3u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(works(comm, 5000));
      for (const Comm& c : levels) EXPECT_TRUE(works(*c, 5000));
    }
  });
}

TEST_P(Split, ManyInARowLeaveNothingBehind) {
  constexpr int kWarmUp = 5, kTotal = kSanitized ? 30 : 150;
  struct Meeting {
    Barrier before, looked, after, done;
  };
  Shared<Meeting> meeting;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    std::set<std::string> before;
    Mappings maps;
    for (int i = 0; i < kTotal; ++i) {
      if (i == kWarmUp) {
        ASSERT_TRUE(meeting->before.arrive_and_wait(3, 30));
        if (comm.rank() == 0) before = open_descriptors(), maps = shared_mappings();
        ASSERT_TRUE(meeting->looked.arrive_and_wait(3, 30));
      }
      const Comm part = split_or_fail(comm, i % 4 == comm.rank() ? kNoColour : 1, i % 2 == 0 ? comm.rank() : -comm.rank());
      if (part != nullptr) {
        ASSERT_TRUE(works(*part, static_cast<uint64_t>(i % 5) * 2000)) << i;
      }
    }
    ASSERT_TRUE(meeting->after.arrive_and_wait(3, 60));
    if (comm.rank() == 0) {
      EXPECT_EQ(open_descriptors(), before);
      EXPECT_LE(shared_mappings().bytes, maps.bytes);
    }
    ASSERT_TRUE(meeting->done.arrive_and_wait(3, 30));
  });
}

TEST_P(Split, ParentAndPartsGoInAnyOrder) {
  for (const int order : {0, 1, 2, 3}) {
    spawn_owning(GetParam(), 4, [&](Comm comm) {
      const Rank r = comm->rank();
      Comm part = split_or_fail(*comm, r % 2, 0);
      Comm twin = split_or_fail(*comm, 0, -r);
      ASSERT_NE(part, nullptr);
      ASSERT_NE(twin, nullptr);
      if (order == 1 || (order == 2 && r % 2 == 0)) comm.reset();  // other ranks still use it; that must work
      EXPECT_TRUE(works(*twin));
      EXPECT_TRUE(works(*part));
      if (order == 3) {  // two communicators of the same ranks, destroyed in opposite orders
        if (r % 2 == 0) comm.reset(), twin.reset();
        else twin.reset(), comm.reset();
      }
      EXPECT_TRUE(works(*part));
    });
  }
}

TEST_P(Split, BesideOutstandingWorkOfTheParent) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    SimpleAllReduce first(comm, 200000), second(comm, 100);
    Work a, b;
    ASSERT_TRUE(is_ok(first.start(comm, &a)));
    const Comm part = split_or_fail(comm, 0, 0);
    ASSERT_NE(part, nullptr);
    EXPECT_TRUE(works(*part));
    ASSERT_TRUE(is_ok(second.start(comm, &b)));
    EXPECT_TRUE(is_ok(a.wait()));
    EXPECT_TRUE(is_ok(b.wait()));
    EXPECT_EQ(first.judge() + second.judge(), "");
  });
}

TEST_P(Split, ARankThatDoesNotComeIsNamed) {
  Shared<SharedCounter> gave_up;
  SpawnOptions options;
  options.config.init_deadline_s = 3;
  spawn(
      GetParam(), 4,
      [&](Communicator& comm) {
        EXPECT_TRUE(works(comm));
        if (comm.rank() == 2) {
          EXPECT_TRUE(gave_up->wait_at_least(3, 50));
          return;
        }
        EXPECT_TRUE(fails_with(comm.split(0, 0).status(), StatusCode::kTimeout, {"rank 2", "3 s"}));
        gave_up->add();
        EXPECT_TRUE(is_ok(comm.error())) << "its data path is as it was";
      },
      options);
}

TEST_P(Split, DifferentCallsAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    const UniqueId id{};
    const Status s = comm.rank() == 0 ? comm.split(0, 0).status() : comm.grow(3, &id).status();
    EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {"rank 0", "rank 1", "split", "grow"}));
  });
}

TEST_P(Split, AnAbortOfTheParentEndsTheWait) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.abort();
      EXPECT_TRUE(fails_with(comm.error(), StatusCode::kAborted, {"rank 1"}));
      return;
    }
    const Stopwatch watch;
    EXPECT_TRUE(fails_with(comm.split(0, 0).status(), StatusCode::kAborted, {"rank 1"}));
    EXPECT_LT(watch.seconds(), 30);
  });
}

TEST_P(Split, ARaisedTokenEndsTheWait) {
  Shared<SharedCounter> done;
  spawn(GetParam(), 4, [&](Communicator& comm) {
    // A part with its own token. The token ends the creation of that part's children.
    Config config;
    config.abort.emplace();
    const Comm part = split_or_fail(comm, 0, 0, config);
    ASSERT_NE(part, nullptr);
    EXPECT_TRUE(works(*part));
    if (comm.rank() == 3) {  // never comes
      EXPECT_TRUE(done->wait_at_least(3, 50));
      return;
    }
    const Stopwatch watch;
    std::thread raiser;
    if (comm.rank() == 0) raiser = std::thread([token = *config.abort] { token.raise(); });
    EXPECT_TRUE(fails_with(part->split(0, 0).status(), StatusCode::kAborted, {"rank 0"}));  // also on ranks 1 and 2
    EXPECT_LT(watch.seconds(), 30) << "the deadline is 120 s";
    if (raiser.joinable()) raiser.join();
    EXPECT_TRUE(is_ok(part->error())) << "the token concerns the making of communicators only";
    done->add();
  });
}

TEST_P(Split, ATokenOfTheCallAloneEndsTheWait) {
  Shared<SharedCounter> done;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      EXPECT_TRUE(done->wait_at_least(1, 50));
      return;
    }
    Config config;
    config.abort.emplace();
    std::thread raiser([token = *config.abort] { token.raise(); });
    const Stopwatch watch;
    EXPECT_TRUE(fails_with(comm.split(0, 0, config).status(), StatusCode::kAborted, {"rank 0"}));
    EXPECT_LT(watch.seconds(), 30) << "the deadline is 120 s";
    raiser.join();
    done->add();
  });
}

TEST_P(Split, AFailedParentSaysWhyToAll) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      EXPECT_TRUE(is_ok(comm.finalize()));
    }
    EXPECT_TRUE(fails_with(comm.split(0, 0).status(), StatusCode::kInvalidArgument, {"rank 2", "finalized"}));
  });
}

class Finalize : public ::testing::TestWithParam<World> {};

TEST_P(Finalize, WaitsForOutstandingWorkAndRefusesMore) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    std::vector<SimpleAllReduce> calls;
    std::vector<Work> work(8);
    for (uint64_t i = 0; i < work.size(); ++i) calls.emplace_back(comm, 1 + i * 40000);
    for (size_t i = 0; i < work.size(); ++i) ASSERT_TRUE(is_ok(calls[i].start(comm, &work[i])));
    EXPECT_TRUE(is_ok(comm.finalize()));
    for (size_t i = 0; i < work.size(); ++i) {
      EXPECT_TRUE(is_ok(work[i].test())) << "nothing is under way any more";
      EXPECT_EQ(calls[i].judge(), "");
    }
    SimpleAllReduce late(comm, 10);
    EXPECT_TRUE(fails_with(late.start(comm, nullptr), StatusCode::kInvalidArgument, {"finalized"}));
    Work refused;
    const Status started = late.start(comm, &refused);
    EXPECT_TRUE(fails_with(started.ok() ? refused.wait() : started, StatusCode::kInvalidArgument, {"finalized"}));
    EXPECT_TRUE(fails_with(comm.alloc(4096).status(), StatusCode::kInvalidArgument, {"finalized"}));
    EXPECT_TRUE(is_ok(comm.finalize())) << "again";
    EXPECT_TRUE(is_ok(comm.error()));
  });
}

TEST_P(Finalize, ReportsWhatWentWrong) {
  Shared<SharedCounter> aborted;
  spawn_owning(GetParam(), 2, [&](Comm comm) {
    EXPECT_TRUE(works(*comm));
    if (comm->rank() == 1) {
      comm->abort();
      aborted->add();
    }
    ASSERT_TRUE(aborted->wait_at_least(1, 30));
    SimpleAllReduce call(*comm, 1000);
    Work work;
    (void)call.start(*comm, &work);
    EXPECT_TRUE(fails_with(comm->finalize(), StatusCode::kAborted, {"rank 1"}));
    EXPECT_TRUE(fails_with(comm->error(), StatusCode::kAborted, {"rank 1"}));
  });
}

TEST_P(Finalize, WorksOutliveTheirCommunicator) {
  spawn_owning(GetParam(), 2, [](Comm comm) {
    SimpleAllReduce good(*comm, 5000);
    Work work, never_used;
    ASSERT_TRUE(is_ok(good.start(*comm, &work)));
    comm.reset();  // completes it
    EXPECT_TRUE(is_ok(work.test()));
    EXPECT_TRUE(is_ok(work.wait()));
    EXPECT_EQ(good.judge(), "");
  });
  spawn_owning(GetParam(), 2, [](Comm comm) {
    SimpleAllReduce call(*comm, 5000);
    Work work;
    const bool lonely = comm->rank() == 0;
    if (lonely) {
      ASSERT_TRUE(is_ok(call.start(*comm, &work)));
      comm->abort();
    }
    comm.reset();
    if (lonely) {
      EXPECT_EQ(work.wait().code(), StatusCode::kAborted) << work.test().to_string();
    }
  });
}

}  // namespace rondo::testing
