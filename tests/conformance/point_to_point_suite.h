// send and recv: single and in groups, zero elements, to the own rank, many at once, next to collectives; and errors.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class PointToPoint : public WorldTest {};

inline std::vector<int> message(int from, int to, int number, uint64_t count_elems) {
  std::vector<int> m(count_elems);
  for (uint64_t i = 0; i < count_elems; ++i) m[i] = from * 100'000'007 + to * 1009 + number * 31 + static_cast<int>(i);
  return m;
}

TEST_P(PointToPoint, PingPongOfEverySize) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    const Rank peer = 1 - comm.rank();
    int number = 0;
    for (const uint64_t count : {1u, 0u, 13u, 14u, 112u, 113u, 16383u, 16384u, 16385u, 300007u}) {
      ++number;
      std::vector<int> got(count, -1);
      if (comm.rank() == 0) {
        ASSERT_TRUE(is_ok(comm.send(message(0, 1, number, count).data(), count, Dtype::kInt32, peer)));
        ASSERT_TRUE(is_ok(comm.recv(got.data(), count, Dtype::kInt32, peer)));
      } else {
        ASSERT_TRUE(is_ok(comm.recv(got.data(), count, Dtype::kInt32, peer)));
        ASSERT_TRUE(is_ok(comm.send(message(1, 0, number, count).data(), count, Dtype::kInt32, peer)));
      }
      ASSERT_EQ(got, message(peer, comm.rank(), number, count)) << count;
    }
  });
}

// All pairs at once, with messages to the own rank, larger than a connection's memory: only a group makes that safe.
TEST_P(PointToPoint, GroupedAmongAll) {
  for (const int nranks : {1, 3, 4})
    spawn(GetParam(), nranks, [nranks](Communicator& comm) {
      for (const uint64_t count : {5u, 0u, 700001u}) {
        std::vector<std::vector<int>> out, in(static_cast<size_t>(nranks), std::vector<int>(count, -1));
        for (Rank r = 0; r < nranks; ++r) out.push_back(message(comm.rank(), r, 0, count));
        group_start();
        for (Rank r = 0; r < nranks; ++r) {
          const auto i = static_cast<size_t>(r);
          EXPECT_TRUE(is_ok(comm.send(out[i].data(), count, Dtype::kInt32, r)));
          EXPECT_TRUE(is_ok(comm.recv(in[i].data(), count, Dtype::kInt32, r)));
        }
        ASSERT_TRUE(is_ok(group_end()));
        for (Rank r = 0; r < nranks; ++r)
          ASSERT_EQ(in[static_cast<size_t>(r)], message(r, comm.rank(), 0, count)) << "from " << r;
      }
    });
}

// Messages of a pair match in order, whatever their lengths and kinds of call.
TEST_P(PointToPoint, MessagesOfAPairMatchInOrder) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr uint64_t kCounts[] = {3, 20000, 0, 1, 70000, 56, 14};
    std::vector<std::vector<int>> buffers;
    std::vector<Work> works(std::size(kCounts));
    for (size_t k = 0; k < std::size(kCounts); ++k)
      buffers.push_back(comm.rank() == 0 ? message(0, 1, static_cast<int>(k), kCounts[k])
                                         : std::vector<int>(kCounts[k], -1));
    for (size_t k = 0; k < std::size(kCounts); ++k) {
      auto& b = buffers[k];
      ASSERT_TRUE(is_ok(comm.rank() == 0 ? comm.send(b.data(), b.size(), Dtype::kInt32, 1, nullptr, &works[k])
                                         : comm.recv(b.data(), b.size(), Dtype::kInt32, 0, nullptr, &works[k])));
    }
    for (size_t k = std::size(kCounts); k-- > 0;) ASSERT_TRUE(is_ok(works[k].wait()));
    for (size_t k = 0; k < std::size(kCounts); ++k)
      ASSERT_EQ(buffers[k], message(0, 1, static_cast<int>(k), kCounts[k])) << k;
  });
}

// The order within a group does not matter: ranks list collective and message in different orders.
TEST_P(PointToPoint, GroupedWithCollectivesInAnyOrder) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      const uint64_t count = round % 2 == 0 ? 9 : 300000;
      SimpleAllReduce sum(comm, 1000 + static_cast<uint64_t>(round) * 5000);
      const Rank to = (comm.rank() + 1) % 3, from = (comm.rank() + 2) % 3;
      std::vector<int> out = message(comm.rank(), to, round, count), in(count, -1);
      group_start();
      if (comm.rank() != 1) {
        EXPECT_TRUE(is_ok(sum.start(comm, nullptr)));
      }
      EXPECT_TRUE(is_ok(comm.recv(in.data(), count, Dtype::kInt32, from)));
      EXPECT_TRUE(is_ok(comm.send(out.data(), count, Dtype::kInt32, to)));
      if (comm.rank() == 1) {
        EXPECT_TRUE(is_ok(sum.start(comm, nullptr)));
      }
      ASSERT_TRUE(is_ok(group_end()));
      ASSERT_EQ(in, message(from, comm.rank(), round, count));
      ASSERT_EQ(sum.judge(), "");
    }
  });
}

// Messages between some ranks do not disturb the count of collectives.
TEST_P(PointToPoint, AFewTalkBetweenCollectives) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    for (int round = 0; round < 50; ++round) {
      if (comm.rank() == 1) {
        ASSERT_TRUE(is_ok(comm.send(&round, 1, Dtype::kInt32, 3)));
      }
      if (comm.rank() == 3) {
        int got = -1;
        ASSERT_TRUE(is_ok(comm.recv(&got, 1, Dtype::kInt32, 1)));
        ASSERT_EQ(got, round);
      }
      SimpleAllReduce sum(comm, 10);
      ASSERT_TRUE(is_ok(sum.start(comm, nullptr)));
      ASSERT_EQ(sum.judge(), "");
    }
  });
}

TEST_P(PointToPoint, DifferentEndsAreNamedOnBoth) {
  struct Ends {
    uint64_t send_count, recv_count;
    Dtype send_type, recv_type;
    const char* word;
  };
  for (const Ends& e : {Ends{5, 6, Dtype::kInt32, Dtype::kInt32, "count_elems"},
                        Ends{5, 100000, Dtype::kInt32, Dtype::kInt32, "count_elems"},
                        Ends{500000, 0, Dtype::kInt32, Dtype::kInt32, "count_elems"},
                        Ends{500000, 500000, Dtype::kInt32, Dtype::kFloat32, "dtype"}}) {
    Shared<Barrier> checked;
    spawn(GetParam(), 2, [&](Communicator& comm) {
      std::vector<int> buffer(500000);
      const bool sends = comm.rank() == 0;
      const Stopwatch watch;
      const Status s = sends ? comm.send(buffer.data(), e.send_count, e.send_type, 1)
                             : comm.recv(buffer.data(), e.recv_count, e.recv_type, 0);
      // A short message is sent before the check. Without elements no peer is needed.
      const bool noticed = sends ? e.send_count > 100000 : e.recv_count != 0;
      if (noticed) {
        EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {e.word, "message #1 from rank 0 to rank 1"}))
            << "rank " << comm.rank();
      }
      EXPECT_LT(watch.seconds(), kSanitized ? 10 : 2);
      ASSERT_TRUE(checked->arrive_and_wait(2, 20));
    });
  }
}

TEST_P(PointToPoint, APeerThatNeverCallsIsNamedAtTheDeadline) {
  SpawnOptions options;
  options.config.deadline_s = 0.3;
  Shared<Barrier> checked;
  spawn(
      GetParam(), 3,
      [&](Communicator& comm) {
        int x = 0;
        if (comm.rank() == 0) {
          EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kInt32, 2), StatusCode::kTimeout,
                                 {"rank 0", "rank 2 has not called send to rank 0 (call 1 of this pair)"}));
        }
        ASSERT_TRUE(checked->arrive_and_wait(3, 20));
      },
      options);
}

TEST_P(PointToPoint, BadArgumentsAreNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    int x = 0;
    EXPECT_TRUE(fails_with(comm.send(&x, 1, Dtype::kInt32, 2), StatusCode::kInvalidArgument, {"peer is 2", "0 to 1"}));
    EXPECT_TRUE(fails_with(comm.recv(&x, 1, Dtype::kInt32, -1), StatusCode::kInvalidArgument, {"peer is -1"}));
    EXPECT_TRUE(fails_with(comm.send(nullptr, 1, Dtype::kInt32, 0), StatusCode::kInvalidArgument, {"in", "null"}));
    EXPECT_TRUE(fails_with(comm.broadcast(&x, &x, 1, Dtype::kInt32, 5), StatusCode::kInvalidArgument, {"root is 5"}));
    EXPECT_TRUE(is_ok(comm.send(nullptr, 0, Dtype::kInt32, 0)));
  });
}

}  // namespace rondo::testing
