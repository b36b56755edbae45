// Several communicators at once: on one set of ranks, in one process, from several threads, in one group.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "api/parts.h"

namespace rondo::testing {

class Several : public ::testing::TestWithParam<World> {};

// `count` calls of random sizes, blocking and not, equal on all ranks by the seed.
inline void use(Communicator& comm, int count, unsigned seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const uint64_t elems = random() % 3 == 0 ? random() % 60000 : random() % 600;
    if (random() % 3 != 0) {
      EXPECT_TRUE(works(comm, elems)) << "call " << i << " of seed " << seed;
      continue;
    }
    SimpleAllReduce a(comm, elems), b(comm, elems / 2);
    Work first, second;
    ASSERT_TRUE(is_ok(a.start(comm, &first)));
    ASSERT_TRUE(is_ok(b.start(comm, &second)));
    EXPECT_TRUE(is_ok(second.wait()));
    EXPECT_TRUE(is_ok(first.wait()));
    EXPECT_EQ(a.judge() + b.judge(), "");
  }
}

TEST_P(Several, TwoThreadsOfARankOnTwoCommunicators) {
  constexpr int kCalls = kSanitized ? 40 : 200;
  spawn(GetParam(), 3, [](Communicator& comm) {
    const Comm reversed = split_or_fail(comm, 0, -comm.rank());
    ASSERT_NE(reversed, nullptr);
    std::thread other([&] { use(*reversed, kCalls, 17); });
    use(comm, kCalls, 4);
    other.join();
  });
}

// No rank waits: progress threads drive the calls of all communicators. Rank 1 is late, so they sleep meanwhile.
TEST_P(Several, CallsOnAllGoOnWithoutAWait) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    std::vector<Comm> twins;
    for (int i = 0; i < 3; ++i) twins.push_back(split_or_fail(comm, 0, 0));
    for (int round = 0; round < 6; ++round) {
      std::vector<std::unique_ptr<SimpleAllReduce>> calls;
      std::vector<Work> works(twins.size());
      for (size_t i = 0; i < twins.size(); ++i) calls.push_back(std::make_unique<SimpleAllReduce>(comm, 1 + 70000 * i));
      for (size_t k = 0; k < twins.size(); ++k) {
        const size_t i = comm.rank() == 0 ? k : twins.size() - 1 - k;
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(7));
        ASSERT_TRUE(is_ok(calls[i]->start(*twins[i], &works[i])));
      }
      for (size_t i = 0; i < twins.size(); ++i) {
        const Stopwatch watch;
        while (works[i].test().code() == StatusCode::kInProgress && watch.seconds() < 20) std::this_thread::yield();
        ASSERT_TRUE(is_ok(works[i].test())) << "communicator " << i << ", round " << round;
        EXPECT_EQ(calls[i]->judge(), "");
      }
    }
  });
}

// The progress thread leaves the communicator that ends, and goes on with the other.
TEST_P(Several, OneEndsWhileAnotherHasAnOperation) {
  Shared<Barrier> others_have_ended;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    const Comm lasting = split_or_fail(comm, 0, 0);
    SimpleAllReduce call(comm, 50000);
    Work work;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(call.start(*lasting, &work)));
    }
    for (int i = 0; i < 5; ++i) {
      SimpleAllReduce other(comm, 100);
      const Comm brief = split_or_fail(comm, 0, 0);
      Work done;
      ASSERT_TRUE(is_ok(other.start(*brief, &done)));
      if (i % 2 == 0) EXPECT_TRUE(is_ok(done.wait()));
    }
    ASSERT_TRUE(others_have_ended->arrive_and_wait(2, 20));
    if (comm.rank() == 1) {
      ASSERT_TRUE(is_ok(call.start(*lasting, &work)));
    }
    const Stopwatch watch;
    while (work.test().code() == StatusCode::kInProgress && watch.seconds() < 20) std::this_thread::yield();
    ASSERT_TRUE(is_ok(work.test()));
    EXPECT_EQ(call.judge(), "");
  });
}

// The progress thread always has messages of one communicator to move. The call that rank 1 does not make on the other
// one still ends at its deadline.
TEST_P(Several, ADeadlineBesideCallsThatAlwaysMove) {
  constexpr uint64_t kElems = 1 << 20;
  constexpr size_t kAtOnce = 8, kCalls = kSanitized ? 200 : 1000;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    const Comm busy = split_or_fail(comm, 0, 0);
    ASSERT_NE(busy, nullptr);
    float one = 1, sum = 0;
    Work stuck;
    if (comm.rank() == 0) {
      const CallOptions options{.deadline_s = 0.2};
      ASSERT_TRUE(is_ok(comm.all_reduce(&one, &sum, 1, Dtype::kFloat32, Op::kSum, &options, &stuck)));
    }
    const std::vector<float> in(kElems, 1);
    std::vector<std::vector<float>> out(kAtOnce, std::vector<float>(kElems));
    std::vector<Work> works(kAtOnce);
    bool ended_meanwhile = false;
    for (size_t i = 0; i < kCalls + kAtOnce; ++i) {
      Work& work = works[i % kAtOnce];
      if (i >= kAtOnce) {
        const Stopwatch watch;
        while (work.test().code() == StatusCode::kInProgress && watch.seconds() < 20)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        ASSERT_TRUE(is_ok(work.test()));
      }
      if (i >= kCalls) continue;
      ASSERT_TRUE(is_ok(
          busy->all_reduce(in.data(), out[i % kAtOnce].data(), kElems, Dtype::kFloat32, Op::kSum, nullptr, &work)));
      if (comm.rank() == 0 && stuck.test().code() != StatusCode::kInProgress) ended_meanwhile = true;
    }
    if (comm.rank() == 1) return;
    EXPECT_TRUE(ended_meanwhile);
    EXPECT_EQ(stuck.wait().code(), StatusCode::kTimeout);
  });
}

TEST_P(Several, SplitsAndCallsFromTwoThreads) {
  constexpr int kRounds = kSanitized ? 8 : 40;
  spawn(GetParam(), 4, [](Communicator& comm) {
    const Comm twin = split_or_fail(comm, 0, 0);
    ASSERT_NE(twin, nullptr);
    std::thread other([&] {  // makes parts of the twin while the first thread uses and splits the parent
      for (int i = 0; i < kRounds; ++i) {
        const Comm part = split_or_fail(*twin, (twin->rank() + i) % 2, i % 3 == 0 ? -twin->rank() : 0);
        ASSERT_NE(part, nullptr);
        use(*part, 3, static_cast<unsigned>(i));
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      const Comm part = split_or_fail(comm, comm.rank() / 2, 0);
      ASSERT_NE(part, nullptr);
      use(comm, 2, static_cast<unsigned>(i));
      use(*part, 2, static_cast<unsigned>(100 + i));
    }
    other.join();
  });
}

TEST_P(Several, InOneGroup) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    const Comm row = split_or_fail(comm, comm.rank() / 2, 0), column = split_or_fail(comm, comm.rank() % 2, 0);
    ASSERT_NE(row, nullptr);
    ASSERT_NE(column, nullptr);
    for (int i = 0; i < 20; ++i) {
      SimpleAllReduce a(comm, 3000), b(*row, 70000), c(*column, 5);
      group_start();
      // The order differs between ranks. Within a group that is allowed.
      if (comm.rank() % 2 == 0) {
        ASSERT_TRUE(is_ok(a.start(comm, nullptr)));
        ASSERT_TRUE(is_ok(b.start(*row, nullptr)));
        ASSERT_TRUE(is_ok(c.start(*column, nullptr)));
      } else {
        ASSERT_TRUE(is_ok(c.start(*column, nullptr)));
        ASSERT_TRUE(is_ok(b.start(*row, nullptr)));
        ASSERT_TRUE(is_ok(a.start(comm, nullptr)));
      }
      ASSERT_TRUE(is_ok(group_end()));
      EXPECT_EQ(a.judge() + b.judge() + c.judge(), "");
    }
  });
}

}  // namespace rondo::testing
