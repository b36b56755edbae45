// Asynchronous work, groups and several communicators: the order in which calls are made, waited for and dropped.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class Async : public ::testing::TestWithParam<World> {};

inline std::vector<std::unique_ptr<SimpleAllReduce>> make_calls(const Communicator& comm,
                                                                std::initializer_list<uint64_t> counts) {
  std::vector<std::unique_ptr<SimpleAllReduce>> calls;
  for (const uint64_t count : counts) calls.push_back(std::make_unique<SimpleAllReduce>(comm, count));
  return calls;
}

TEST_P(Async, WaitEndsWithTheResult) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (const uint64_t count : {0u, 1u, 1000u, 500000u}) {
      SimpleAllReduce call(comm, count);
      Work work;
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      ASSERT_TRUE(is_ok(work.wait()));
      EXPECT_EQ(call.judge(), "");
      EXPECT_TRUE(is_ok(work.test())) << "after wait";
      EXPECT_TRUE(is_ok(work.wait())) << "a second wait";
    }
  });
}

TEST_P(Async, TestTurnsFromInProgressToDone) {
  Shared<Barrier> last_may_start;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    SimpleAllReduce call(comm, 300000);
    Work work;
    if (comm.rank() != 2) {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      EXPECT_EQ(work.test().code(), StatusCode::kInProgress) << "rank 2 has not called yet";
    }
    ASSERT_TRUE(last_may_start->arrive_and_wait(3, 20));
    if (comm.rank() == 2) {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
    }
    const Stopwatch watch;
    while (work.test().code() == StatusCode::kInProgress && watch.seconds() < 20) std::this_thread::yield();
    ASSERT_TRUE(is_ok(work.test()));
    EXPECT_EQ(call.judge(), "");
  });
}

// A thread that waited for one call goes on to compute, and the next call progresses without it.
TEST_P(Async, WhatAWaitLeavesBehindGoesOn) {
  Shared<std::atomic<int>> stage;  // of rank 0: in each round it is about to wait, and has waited
  spawn(GetParam(), 2, [&](Communicator& comm) {
    auto reached = [&](int at) {
      const Stopwatch watch;
      while (*stage < at && watch.seconds() < 20) std::this_thread::yield();
      return *stage >= at;
    };
    for (int round = 0; round < 5; ++round) {
      auto calls = make_calls(comm, {5, 300000});
      Work first, second;
      if (comm.rank() == 0) {
        group_start();
        ASSERT_TRUE(is_ok(calls[0]->start(comm, &first)));
        ASSERT_TRUE(is_ok(calls[1]->start(comm, &second)));
        ASSERT_TRUE(is_ok(group_end()));
        ++*stage;
        ASSERT_TRUE(is_ok(first.wait()));
        ++*stage;
      } else {
        ASSERT_TRUE(reached(2 * round + 1));
        ASSERT_TRUE(is_ok(calls[0]->start(comm, &first)));
        ASSERT_TRUE(is_ok(first.wait()));
        ASSERT_TRUE(reached(2 * round + 2));
        ASSERT_TRUE(is_ok(calls[1]->start(comm, &second)));
      }
      const Stopwatch watch;
      while (second.test().code() == StatusCode::kInProgress && watch.seconds() < 10) std::this_thread::yield();
      ASSERT_TRUE(is_ok(second.test())) << "round " << round << ", rank " << comm.rank();
      EXPECT_EQ(calls[1]->judge(), "");
    }
  });
}

TEST_P(Async, SeveralOutstandingInAnyOrderOfWaits) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    auto calls = make_calls(comm, {7, 100000, 1, 0, 20000, 500, 300000, 3});
    std::vector<Work> works(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(is_ok(calls[i]->start(comm, &works[i])));
    for (size_t i = 0; i < calls.size(); ++i) {
      // Even ranks go forwards, odd ranks backwards.
      const size_t k = comm.rank() % 2 == 0 ? i : calls.size() - 1 - i;
      ASSERT_TRUE(is_ok(works[k].wait()));
      EXPECT_EQ(calls[k]->judge(), "") << "call " << k;
    }
  });
}

TEST_P(Async, MoreOutstandingThanAnyQueueIsLong) {
  constexpr size_t kNumCalls = 2000;
  spawn(GetParam(), 2, [](Communicator& comm) {
    std::vector<std::unique_ptr<SimpleAllReduce>> calls;
    std::vector<Work> works(kNumCalls);
    for (size_t i = 0; i < kNumCalls; ++i) {
      calls.push_back(std::make_unique<SimpleAllReduce>(comm, i % 50));
      ASSERT_TRUE(is_ok(calls[i]->start(comm, &works[i])));
    }
    for (size_t i = 0; i < kNumCalls; ++i) {
      ASSERT_TRUE(is_ok(works[i].wait()));
      ASSERT_EQ(calls[i]->judge(), "") << "call " << i;
    }
  });
}

TEST_P(Async, BlockingCallsBetweenAsynchronousOnes) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      SimpleAllReduce first(comm, 40000), second(comm, 17);
      Work a, b;
      ASSERT_TRUE(is_ok(first.start(comm, &a)));
      EXPECT_TRUE(works(comm));
      ASSERT_TRUE(is_ok(second.start(comm, &b)));
      EXPECT_TRUE(works(comm, 3));
      ASSERT_TRUE(is_ok(b.wait()));
      ASSERT_TRUE(is_ok(a.wait()));
      EXPECT_EQ(first.judge() + second.judge(), "");
    }
  });
}

TEST_P(Async, DroppedWorkStillCompletes) {
  spawn_owning(GetParam(), 3, [](std::unique_ptr<Communicator> comm) {
    SimpleAllReduce call(*comm, 100000);
    {
      Work dropped;
      ASSERT_TRUE(is_ok(call.start(*comm, &dropped)));
    }
    comm.reset();  // waits for outstanding work
    EXPECT_EQ(call.judge(), "");
  });
}

TEST_P(Async, AMovedWorkIsTheSameWork) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    SimpleAllReduce call(comm, 1000), other(comm, 10);
    Work work, replaced;
    ASSERT_TRUE(is_ok(call.start(comm, &work)));
    ASSERT_TRUE(is_ok(other.start(comm, &replaced)));
    Work moved = std::move(work);
    ASSERT_TRUE(is_ok(moved.wait()));
    EXPECT_EQ(call.judge(), "");
    replaced = std::move(moved);  // drops the other call's work
    EXPECT_TRUE(is_ok(replaced.wait()));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Async, WorkIsWaitedForByAnotherThread) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    SimpleAllReduce call(comm, 200000);
    Work work;
    ASSERT_TRUE(is_ok(call.start(comm, &work)));
    Status status;
    std::thread waiter([&] { status = work.wait(); });
    waiter.join();
    EXPECT_TRUE(is_ok(status));
    EXPECT_EQ(call.judge(), "");
  });
}

TEST_P(Async, OneThreadWaitsWhileAnotherCalls) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      SimpleAllReduce call(comm, 200000);
      Work work;
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      Status waited;
      std::thread waiter([&] { waited = work.wait(); });
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(works(comm, 10 + static_cast<uint64_t>(i) * 500));
      waiter.join();
      ASSERT_TRUE(is_ok(waited));
      ASSERT_EQ(call.judge(), "");
    }
  });
}

TEST_P(Async, CallsThatShareABufferRunInTheirOrder) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<int64_t> x(5000, 1);
      constexpr int kNumCalls = 6;
      Work works[kNumCalls];
      for (Work& w : works)  // each sum reads the result of the previous one
        ASSERT_TRUE(is_ok(comm.all_reduce(x.data(), x.data(), x.size(), Dtype::kInt64, Op::kSum, nullptr, &w)));
      for (Work& w : works) ASSERT_TRUE(is_ok(w.wait()));
      for (const int64_t v : x) ASSERT_EQ(v, 3 * 3 * 3 * 3 * 3 * 3);
    }
  });
}

TEST_P(Async, GroupsRunTheirCallsAsOneBatch) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (int repeat = 0; repeat < 10; ++repeat) {
      auto calls = make_calls(comm, {100, 0, 70000, 3});
      group_start();
      group_start();  // groups nest
      for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(is_ok(calls[i]->start(comm, nullptr)));
      ASSERT_TRUE(is_ok(group_end()));
      for (size_t i = 2; i < 4; ++i) ASSERT_TRUE(is_ok(calls[i]->start(comm, nullptr)));
      ASSERT_TRUE(is_ok(group_end()));
      for (const auto& call : calls) EXPECT_EQ(call->judge(), "");
    }
  });
}

TEST_P(Async, GroupsMixBlockingAndAsynchronousCalls) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    auto calls = make_calls(comm, {1000, 50000});
    Work work;
    group_start();
    ASSERT_TRUE(is_ok(calls[0]->start(comm, nullptr)));
    ASSERT_TRUE(is_ok(calls[1]->start(comm, &work)));
    ASSERT_TRUE(is_ok(group_end()));
    EXPECT_EQ(calls[0]->judge(), "");
    ASSERT_TRUE(is_ok(work.wait()));
    EXPECT_EQ(calls[1]->judge(), "");
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Async, AnEmptyGroupIsFine) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    group_start();
    EXPECT_TRUE(is_ok(group_end()));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Async, AnEndWithoutAStartIsRefused) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    EXPECT_TRUE(fails_with(group_end(), StatusCode::kInvalidArgument, {"group"}));
    EXPECT_TRUE(works(comm));
  });
}

TEST_P(Async, GroupsSpanCommunicators) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    auto second = second_communicator(comm);
    ASSERT_TRUE(is_ok(second.status()));
    for (int repeat = 0; repeat < 10; ++repeat) {
      auto calls = make_calls(comm, {1000, 60000});
      // Different ranks make the two communicators' calls in different orders.
      const bool swapped = comm.rank() == 1;
      group_start();
      ASSERT_TRUE(is_ok(calls[swapped]->start(swapped ? **second : comm, nullptr)));
      ASSERT_TRUE(is_ok(calls[!swapped]->start(swapped ? comm : **second, nullptr)));
      ASSERT_TRUE(is_ok(group_end()));
      for (const auto& call : calls) EXPECT_EQ(call->judge(), "");
    }
  });
}

inline Status repeat_all_reduce(Communicator& comm, int times, std::string* wrong) {
  for (int i = 0; i < times && wrong->empty(); ++i) {
    SimpleAllReduce call(comm, static_cast<uint64_t>(i * 37));
    RONDO_TRY(call.start(comm, nullptr));
    *wrong = call.judge();
  }
  return Status();
}

TEST_P(Async, TwoCommunicatorsAreUsedFromTwoThreadsAtOnce) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    auto second = second_communicator(comm);
    ASSERT_TRUE(is_ok(second.status()));
    Communicator* order[2] = {&comm, second->get()};
    if (comm.rank() % 2 == 1) std::swap(order[0], order[1]);
    Status status[2];
    std::string wrong[2];
    std::thread first([&] { status[0] = repeat_all_reduce(*order[0], 100, &wrong[0]); });
    std::thread other([&] { status[1] = repeat_all_reduce(*order[1], 100, &wrong[1]); });
    first.join();
    other.join();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(is_ok(status[i]));
      EXPECT_EQ(wrong[i], "");
    }
  });
}

TEST_P(Async, ThreadsTakeTurnsOnOneCommunicator) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    for (int turn = 0; turn < 20; ++turn) {
      Status status;
      std::string wrong;
      std::thread([&] { status = repeat_all_reduce(comm, 5, &wrong); }).join();
      ASSERT_TRUE(is_ok(status));
      ASSERT_EQ(wrong, "");
    }
  });
}

}  // namespace rondo::testing
