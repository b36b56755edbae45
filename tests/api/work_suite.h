// Works: waits with a limit, and functions that are called at the end.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "api/async_suite.h"

namespace rondo::testing {

// A wait with a limit ends at the limit, and the call goes on without a waiting thread.
TEST_P(Async, AWaitWithALimitLeavesTheCallGoing) {
  Shared<Barrier> last_may_start;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    SimpleAllReduce call(comm, 300000);
    Work work;
    if (comm.rank() != 2) {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      const Stopwatch watch;
      EXPECT_EQ(work.wait_for(0).code(), StatusCode::kInProgress);
      EXPECT_EQ(work.wait_for(0.05).code(), StatusCode::kInProgress) << "rank 2 has not called yet";
      EXPECT_GE(watch.seconds(), 0.05);
    }
    ASSERT_TRUE(last_may_start->arrive_and_wait(3, 20));
    if (comm.rank() == 2) {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
    }
    const Stopwatch watch;
    while (work.test().code() == StatusCode::kInProgress && watch.seconds() < 20) std::this_thread::yield();
    ASSERT_TRUE(is_ok(work.wait_for(20)));
    EXPECT_EQ(call.judge(), "");
    EXPECT_TRUE(is_ok(work.wait_for(0))) << "after the end";
  });
}

TEST_P(Async, AWaitOfNoTimeIsRefused) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    SimpleAllReduce call(comm, 10);
    Work work;
    EXPECT_TRUE(fails_with(work.wait_for(1), StatusCode::kInvalidArgument, {"belongs to no operation"}));
    EXPECT_TRUE(
        fails_with(work.on_done([](const Status&) {}), StatusCode::kInvalidArgument, {"belongs to no operation"}));
    ASSERT_TRUE(is_ok(call.start(comm, &work)));
    EXPECT_TRUE(fails_with(work.wait_for(-1), StatusCode::kInvalidArgument, {"seconds"}));
    EXPECT_TRUE(fails_with(work.wait_for(std::nan("")), StatusCode::kInvalidArgument, {"seconds"}));
    EXPECT_TRUE(fails_with(work.on_done(nullptr), StatusCode::kInvalidArgument, {"fn"}));
    ASSERT_TRUE(is_ok(work.wait_for(std::numeric_limits<double>::infinity())));
    EXPECT_EQ(call.judge(), "");
  });
}

/// What the functions of works were called with, in their order.
class Heard {
 public:
  std::function<void(const Status&)> hears(int name) {
    return [this, name](const Status& s) {
      const std::lock_guard guard(mutex_);
      calls_.emplace_back(name, s);
    };
  }
  /// Waits until there are `num` calls, and a little for one too many.
  std::vector<std::pair<int, Status>> calls(size_t num) {
    const Stopwatch watch;
    for (;;) {
      {
        const std::lock_guard guard(mutex_);
        if (calls_.size() >= num || watch.seconds() > 20) break;
      }
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::lock_guard guard(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, Status>> calls_;
};

TEST_P(Async, FunctionsOfAWorkAreCalledOnceInTheirOrder) {
  Shared<Barrier> last_may_start;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    Heard heard;
    SimpleAllReduce call(comm, 300000);
    Work work;
    const auto start = [&] {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(is_ok(work.on_done(heard.hears(i))));
    };
    if (comm.rank() != 2) {
      start();
      EXPECT_TRUE(heard.calls(0).empty()) << "rank 2 has not called yet";
    }
    ASSERT_TRUE(last_may_start->arrive_and_wait(3, 20));
    if (comm.rank() == 2) start();
    const auto calls = heard.calls(3);
    ASSERT_EQ(calls.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(calls[static_cast<size_t>(i)].first, i);
      EXPECT_TRUE(is_ok(calls[static_cast<size_t>(i)].second));
    }
    EXPECT_TRUE(is_ok(work.test()));
    EXPECT_EQ(call.judge(), "") << "without a wait";
    ASSERT_TRUE(is_ok(work.on_done(heard.hears(3))));
    EXPECT_EQ(heard.calls(4).size(), 4u) << "set after the end";
  });
}

// The functions of many works, set while these end.
TEST_P(Async, NoFunctionIsMissed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr size_t kNumCalls = 500;
    Heard heard;
    for (size_t i = 0; i < kNumCalls; ++i) {
      SimpleAllReduce call(comm, i % 7);
      Work work;
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      ASSERT_TRUE(is_ok(work.on_done(heard.hears(static_cast<int>(i)))));
      ASSERT_TRUE(is_ok(work.wait()));
      ASSERT_EQ(call.judge(), "");
    }
    const auto calls = heard.calls(kNumCalls);
    ASSERT_EQ(calls.size(), kNumCalls);
    for (size_t i = 0; i < kNumCalls; ++i) EXPECT_EQ(calls[i].first, static_cast<int>(i));
  });
}

TEST_P(Async, AFunctionMayMakeCallsAndWaitForThem) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    Heard heard;
    SimpleAllReduce first(comm, 1000), blocking(comm, 70000), asynchronous(comm, 300);
    Work work, inner;
    Status inside;
    ASSERT_TRUE(is_ok(first.start(comm, &work)));
    ASSERT_TRUE(is_ok(work.on_done([&](const Status& s) {
      inside = s;
      if (inside.ok()) inside = blocking.start(comm, nullptr);
      if (inside.ok()) inside = asynchronous.start(comm, &inner);
      if (inside.ok()) inside = inner.on_done(heard.hears(1));
      if (inside.ok()) inside = inner.wait();
      heard.hears(0)(inside);
    })));
    const auto calls = heard.calls(2);
    ASSERT_EQ(calls.size(), 2u);
    EXPECT_TRUE(is_ok(inside));
    EXPECT_EQ(calls[0].first, 0) << "one function after the other";
    EXPECT_EQ(first.judge() + blocking.judge() + asynchronous.judge(), "");
  });
}

TEST_P(Async, AFunctionHearsOfAFailure) {
  Shared<Barrier> all_have_failed;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    Heard heard;
    if (comm.rank() == 0) {
      SimpleAllReduce call(comm, 1000);
      CallOptions options;
      options.deadline_s = 0.1;
      Work work;
      ASSERT_TRUE(is_ok(call.start(comm, &work, &options)));
      ASSERT_TRUE(is_ok(work.on_done(heard.hears(0))));
      const auto calls = heard.calls(1);
      ASSERT_EQ(calls.size(), 1u);
      EXPECT_TRUE(fails_with(calls[0].second, StatusCode::kTimeout, {"rank 1", "all_reduce"}));
    }
    EXPECT_TRUE(all_have_failed->arrive_and_wait(2, 20));
  });
}

// None of the waits is long enough to look for the end of the deadline.
TEST_P(Async, ManyShortWaitsEndWithTheDeadline) {
  Shared<Barrier> has_failed;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      SimpleAllReduce call(comm, 1000);
      CallOptions options;
      options.deadline_s = 0.1;
      Work work;
      ASSERT_TRUE(is_ok(call.start(comm, &work, &options)));
      const Stopwatch watch;
      Status s;
      while ((s = work.wait_for(0.0002)).code() == StatusCode::kInProgress && watch.seconds() < 20) {
      }
      EXPECT_EQ(s.code(), StatusCode::kTimeout) << s.to_string();
    }
    EXPECT_TRUE(has_failed->arrive_and_wait(2, 30));
  });
}

TEST_P(Async, AFunctionHearsOfAnAbort) {
  Shared<Barrier> aborted;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    Heard heard;
    SimpleAllReduce call(comm, 1000);
    Work work;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(call.start(comm, &work)));
      ASSERT_TRUE(is_ok(work.on_done(heard.hears(0))));
      comm.abort();
      const auto calls = heard.calls(1);
      ASSERT_EQ(calls.size(), 1u);
      EXPECT_EQ(calls[0].second.code(), StatusCode::kAborted);
    }
    EXPECT_TRUE(aborted->arrive_and_wait(2, 20));
  });
}

TEST_P(Async, AFunctionOutlivesItsWorkAndCommunicator) {
  spawn_owning(GetParam(), 3, [](std::unique_ptr<Communicator> comm) {
    Heard heard;
    SimpleAllReduce call(*comm, 100000);
    {
      Work dropped;
      ASSERT_TRUE(is_ok(call.start(*comm, &dropped)));
      ASSERT_TRUE(is_ok(dropped.on_done(heard.hears(0))));
    }
    comm.reset();
    EXPECT_EQ(heard.calls(1).size(), 1u);
    EXPECT_EQ(call.judge(), "");
  });
}

TEST_P(Async, AFunctionOfACallInAGroup) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    Heard heard;
    auto calls = make_calls(comm, {1000, 50000});
    Work work;
    group_start();
    ASSERT_TRUE(is_ok(calls[0]->start(comm, nullptr)));
    ASSERT_TRUE(is_ok(calls[1]->start(comm, &work)));
    ASSERT_TRUE(is_ok(work.on_done(heard.hears(0))));
    EXPECT_TRUE(heard.calls(0).empty()) << "the group is open";
    ASSERT_TRUE(is_ok(group_end()));
    EXPECT_EQ(heard.calls(1).size(), 1u);
    EXPECT_EQ(calls[1]->judge(), "");
  });
}

}  // namespace rondo::testing
