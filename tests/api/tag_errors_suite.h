// Messages that match by their tags: different sizes, deadlines, ranks that leave, aborts, bad arguments.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "api/tagged_calls.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class TagErrors : public WorldTest {};

TEST_P(TagErrors, DifferentSizesAreNamed) {
  struct Ends {
    uint64_t send_count, recv_count;
    Dtype send_type, recv_type;
    const char* words[3];
    bool unexpected;
  };
  const Dtype i32 = Dtype::kInt32, f32 = Dtype::kFloat32;
  for (const Ends& e : {Ends{6, 5, i32, i32, {"count_elems", "6 int32 (24 B)", "5 int32 (20 B)"}, false},
                        Ends{5, 500'000, i32, i32, {"count_elems", "5 int32 (20 B)", "500000 int32"}, true},
                        Ends{500'000, 0, i32, i32, {"count_elems", "500000 int32", "0 int32 (0 B)"}, false},
                        Ends{0, 1, i32, i32, {"count_elems", "0 int32 (0 B)", "1 int32 (4 B)"}, true},
                        Ends{9, 9, i32, f32, {"dtype", "9 int32", "9 float"}, true}}) {
    Shared<Barrier> checked;
    spawn(GetParam(), 2, [&](Communicator& comm) {
      std::vector<int> buffer(500'000);
      const CallOptions o = tagged(77);
      if (comm.rank() == 0) {
        const Status s = comm.send(buffer.data(), e.send_count, e.send_type, 1, &o);
        if (e.unexpected && s.ok()) {
          EXPECT_TRUE(is_ok(send_tagged(comm, {1}, 1, 78)));
        }
        ASSERT_TRUE(checked->arrive_and_wait(2, 20));
        return;
      }
      std::vector<int> one(1);
      if (e.unexpected) {
        ASSERT_TRUE(is_ok(recv_tagged(comm, one, 0, 78)));
      }
      const Status s = comm.recv(buffer.data(), e.recv_count, e.recv_type, kAnyRank, &o);
      EXPECT_TRUE(fails_with(
          s, StatusCode::kMismatch,
          {"message with tag 77 from rank 0 to rank 1", e.words[0], std::string("rank 0 sends ") + e.words[1],
           std::string("rank 1 receives ") + e.words[2], "pass the same count_elems and dtype"}));
      checked->arrived.add();  // the sender of a long message waits until this rank leaves
      if (e.send_count <= 100'000) {
        ASSERT_TRUE(checked->arrived.wait_at_least(2, 20));
      }
    });
  }
}

TEST_P(TagErrors, AReceiveEndsAtItsDeadline) {
  Shared<Barrier> checked;
  spawn(GetParam(), 3, [&](Communicator& comm) {
    std::vector<int> x(1);
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(send_tagged(comm, {1, 2, 3}, 1, 5)));
      ASSERT_TRUE(is_ok(send_tagged(comm, {4}, 1, 6)));
    } else if (comm.rank() == 1) {
      ASSERT_TRUE(is_ok(recv_tagged(comm, x, 0, 6)));
      const CallOptions o = tagged(8, nullptr, 0.3);
      const Stopwatch watch;
      EXPECT_TRUE(fails_with(comm.recv(x.data(), 1, Dtype::kInt32, 2, &o), StatusCode::kTimeout,
                             {"rank 1", "recv of 1 int32 from rank 2", "tag 8", "rank 2 has sent no such message",
                              "3 int32 (12 B) with tag 5 from rank 0", "it waits for a message with tag 8"}));
      EXPECT_GE(watch.seconds(), 0.3);
      EXPECT_LT(watch.seconds(), kSanitized ? 5 : 2);
    } else {
      const CallOptions o = tagged(9, nullptr, 0.3);
      EXPECT_TRUE(fails_with(comm.recv(x.data(), 1, Dtype::kInt32, kAnyRank, &o), StatusCode::kTimeout,
                             {"rank 2", "from any rank", "tag 9", "no rank has sent such a message"}));
    }
    ASSERT_TRUE(checked->arrive_and_wait(3, 20));
  });
}

// Its deadline counts while other calls never wait, and while an older receive may wait longer.
TEST_P(TagErrors, AReceiveEndsAtItsDeadlineBesideOtherCalls) {
  Shared<Barrier> checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    std::vector<int> x(1), y(1);
    Work patient, stuck;
    const CallOptions o = tagged(1, nullptr, 0.2);
    const Stopwatch watch;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(recv_tagged(comm, x, 1, 2, nullptr, &patient)));
      ASSERT_TRUE(is_ok(comm.recv(y.data(), 1, Dtype::kInt32, kAnyRank, &o, &stuck)));
      while (watch.seconds() < 20 && stuck.test().code() == StatusCode::kInProgress) {
        int from = 1, to = 0;
        group_start();
        (void)comm.send(&from, 1, Dtype::kInt32, 0);
        (void)comm.recv(&to, 1, Dtype::kInt32, 0);
        (void)group_end();
      }
      EXPECT_TRUE(fails_with(stuck.test(), StatusCode::kTimeout, {"tag 1", "any rank"}));
      EXPECT_EQ(patient.test().code(), StatusCode::kTimeout);
      EXPECT_LT(watch.seconds(), 5);
    }
    ASSERT_TRUE(checked->arrive_and_wait(2, 30));
  });
}

TEST_P(TagErrors, ASendWithoutMatchTagsIsNamedAtTheDeadline) {
  if (GetParam() == World::kTcp || GetParam() == World::kUcx || GetParam() == World::kHosts)
    GTEST_SKIP() << "the status pages of other hosts exist only on request";
  Shared<Barrier> sent, checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    int x = 0;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(comm.send(&x, 1, Dtype::kInt32, 1)));
    }
    ASSERT_TRUE(sent->arrive_and_wait(2, 20));
    const CallOptions o = tagged(8, nullptr, 0.2);
    if (comm.rank() == 1) {
      EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kInt32, 0, &o), StatusCode::kTimeout,
                             {"rank 0 calls send without match_tags"}));
    }
    ASSERT_TRUE(checked->arrive_and_wait(2, 20));
  });
}

TEST_P(TagErrors, ARecvWithoutMatchTagsIsNamedAtTheDeadline) {
  Shared<Barrier> sent, checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    int x = 0;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(send_tagged(comm, {1}, 1, 8)));
    }
    ASSERT_TRUE(sent->arrive_and_wait(2, 20));
    const CallOptions o{.deadline_s = 0.2};
    if (comm.rank() == 1) {
      EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kInt32, 0, &o), StatusCode::kTimeout,
                             {"rank 0 calls send with match_tags"}));
    }
    ASSERT_TRUE(checked->arrive_and_wait(2, 20));
  });
}

TEST_P(TagErrors, ASendThatNobodyReceivesEndsAtItsDeadline) {
  Shared<Barrier> checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    const std::vector<int> large(8'000'000);
    const CallOptions o = tagged(8, nullptr, 0.3);
    if (comm.rank() == 0) {
      EXPECT_TRUE(fails_with(comm.send(large.data(), large.size(), Dtype::kInt32, 1, &o), StatusCode::kTimeout,
                             {"rank 0", "send of 8000000 int32 to rank 1", "tag 8", "rank 1 has not received it"}));
    }
    ASSERT_TRUE(checked->arrive_and_wait(2, 20));
  });
}

TEST_P(TagErrors, APeerThatLeavesEndsAReceive) {
  Shared<Barrier> posted;
  spawn_owning(GetParam(), 3, [&](std::unique_ptr<Communicator> comm) {
    std::vector<int> a(3), b(3);
    if (comm->rank() == 0) {
      ASSERT_TRUE(is_ok(recv_tagged(*comm, a, 1, 1)));  // the other rank's message still arrives
      EXPECT_EQ(a, (std::vector<int>{1, 2, 3}));
      // Rank 1 leaves at once, rank 2 sends first. Then nobody is left.
      ASSERT_TRUE(is_ok(recv_tagged(*comm, b, kAnyRank, 2)));
      EXPECT_EQ(b, (std::vector<int>{4, 5, 6}));
      EXPECT_TRUE(fails_with(recv_tagged(*comm, b, kAnyRank, 3), StatusCode::kPeerLost,
                             {"rank 0", "from any rank", "tag 3", "has destroyed its communicator"}));
    } else if (comm->rank() == 1) {
      ASSERT_TRUE(is_ok(send_tagged(*comm, {1, 2, 3}, 0, 1)));
      comm.reset();
      posted->arrived.add();
    } else {
      ASSERT_TRUE(posted->arrived.wait_at_least(1, 20));
      ASSERT_TRUE(is_ok(send_tagged(*comm, {4, 5, 6}, 0, 2)));
    }
  });
}

TEST_P(TagErrors, ANamedPeerThatLeavesEndsAReceive) {
  spawn_owning(GetParam(), 3, [&](std::unique_ptr<Communicator> comm) {
    std::vector<int> a(3);
    if (comm->rank() == 2) return;
    if (comm->rank() == 0) {
      EXPECT_TRUE(fails_with(recv_tagged(*comm, a, 2, 1), StatusCode::kPeerLost,
                             {"rank 0", "rank 2 is lost", "has destroyed its communicator", "tag 1"}));
    }
  });
}

TEST_P(TagErrors, AnAbortEndsAReceive) {
  Shared<Barrier> posted, checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    std::vector<int> a(3);
    Work work;
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(recv_tagged(comm, a, kAnyRank, 1, nullptr, &work)));
    }
    ASSERT_TRUE(posted->arrive_and_wait(2, 20));
    const Stopwatch watch;
    if (comm.rank() == 1) comm.abort();
    else EXPECT_TRUE(fails_with(work.wait(), StatusCode::kAborted, {"rank 1", "from any rank", "tag 1"}));
    EXPECT_LT(watch.seconds(), kSanitized ? 5 : 2);
    ASSERT_TRUE(checked->arrive_and_wait(2, 20));
  });
}

TEST_P(TagErrors, BadArgumentsAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    float x = 0;
    Rank source = 0;
    CallOptions o = tagged(1, &source);
    const StatusCode bad = StatusCode::kInvalidArgument;
    EXPECT_TRUE(fails_with(comm.all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &o), bad, {"match_tags"}));
    EXPECT_TRUE(fails_with(comm.send(&x, 1, Dtype::kFloat32, 0, &o), bad, {"source", "recv"}));
    o.source = nullptr;
    EXPECT_TRUE(fails_with(comm.send(&x, 1, Dtype::kFloat32, kAnyRank, &o), bad, {"peer is -1"}));
    EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kFloat32, -2, &o), bad, {"peer is -2"}));
    EXPECT_TRUE(fails_with(comm.recv(nullptr, 1, Dtype::kFloat32, 0, &o), bad, {"out", "null"}));
    o.match_tags = false;
    EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kFloat32, kAnyRank, &o), bad, {"peer is -1", "match_tags"}));
    o.source = &source;
    EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kFloat32, 0, &o), bad, {"source", "match_tags"}));
    EXPECT_TRUE(works(comm));
  });
}

}  // namespace rondo::testing
