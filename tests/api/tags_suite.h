// Messages that match by their tags: receives in any order and from any rank, next to other calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "api/tagged_calls.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/stress.h"

namespace rondo::testing {

class Tags : public WorldTest {};

inline constexpr uint64_t kTagCounts[] = {0, 1, 13, 14, 112, 113, 4097, 16385, 300007};

TEST_P(Tags, InReverseOrder) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr uint64_t kTags = std::size(kTagCounts);
    for (int round = 0; round < 3; ++round) {
      if (comm.rank() == 0) {  // blocking: each needs the receiver to take it, though it waits for the last one
        for (uint64_t tag = 0; tag < kTags; ++tag)
          ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, tag, round, kTagCounts[tag]), 1, tag)));
      } else {
        for (uint64_t tag = kTags; tag-- > 0;) {
          std::vector<int> got(kTagCounts[tag], -1);
          Rank source = -7;
          ASSERT_TRUE(is_ok(recv_tagged(comm, got, 0, tag, &source)));
          ASSERT_EQ(got, tagged_data(0, 1, tag, round, kTagCounts[tag])) << "tag " << tag;
          EXPECT_EQ(source, 0);
        }
      }
    }
  });
}

TEST_P(Tags, EqualTagsKeepTheirOrder) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr int kEach = 20;
    std::vector<std::vector<int>> data;
    std::vector<Work> works;
    auto count = [](int number) { return kTagCounts[static_cast<size_t>(number) % std::size(kTagCounts)]; };
    if (comm.rank() == 0) {
      for (int number = 0; number < kEach; ++number)
        for (uint64_t tag = 0; tag < 3; ++tag) data.push_back(tagged_data(0, 1, tag, number, count(number)));
      for (int i = 0; i < 3 * kEach; ++i)
        ASSERT_TRUE(is_ok(
            send_tagged(comm, data[static_cast<size_t>(i)], 1, static_cast<uint64_t>(i % 3), &works.emplace_back())));
    } else {
      for (uint64_t tag = 3; tag-- > 0;)
        for (int number = 0; number < kEach; ++number) data.emplace_back(count(number), -1);
      for (int i = 0; i < 3 * kEach; ++i)
        ASSERT_TRUE(is_ok(recv_tagged(comm, data[static_cast<size_t>(i)], i % 2 == 0 ? 0 : kAnyRank,
                                      2 - static_cast<uint64_t>(i / kEach), nullptr, &works.emplace_back())));
    }
    for (Work& w : works) ASSERT_TRUE(is_ok(w.wait()));
    for (int i = 0; i < 3 * kEach && comm.rank() == 1; ++i)
      ASSERT_EQ(data[static_cast<size_t>(i)],
                tagged_data(0, 1, 2 - static_cast<uint64_t>(i / kEach), i % kEach, count(i % kEach)))
          << i;
  });
}

TEST_P(Tags, FromAnyRank) {
  static constexpr int kRanks = 4, kEach = 6;
  spawn(GetParam(), kRanks, [](Communicator& comm) {
    for (uint64_t tag = 0; tag < 4; ++tag) {
      const uint64_t count = std::array{1u, 0u, 113u, 70001u}[tag];
      if (comm.rank() != 0) {
        for (int number = 0; number < kEach; ++number)
          ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(comm.rank(), 0, tag, number, count), 0, tag)));
        continue;
      }
      std::array<int, kRanks> numbers{};
      for (int i = 0; i < (kRanks - 1) * kEach; ++i) {
        std::vector<int> got(count, -1);
        Rank source = -7;
        ASSERT_TRUE(is_ok(recv_tagged(comm, got, kAnyRank, tag, &source)));
        ASSERT_TRUE(source > 0 && source < kRanks) << source;
        ASSERT_EQ(got, tagged_data(source, 0, tag, numbers[static_cast<size_t>(source)]++, count));
      }
      for (Rank r = 1; r < kRanks; ++r) EXPECT_EQ(numbers[static_cast<size_t>(r)], kEach) << r;
    }
  });
}

// The oldest receive for which tag and sender are right gets a message, whether it names the sender or not.
TEST_P(Tags, TheOldestReceiveGetsTheMessage) {
  Shared<Barrier> posted;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    std::vector<std::vector<int>> got(4, std::vector<int>(3, -1));
    std::vector<Rank> sources(4, -7);
    std::vector<Work> works(4);
    const Rank from[] = {kAnyRank, 0, kAnyRank, 0};
    for (size_t i = 0; i < 4 && comm.rank() == 1; ++i)
      ASSERT_TRUE(is_ok(recv_tagged(comm, got[i], from[i], 9, &sources[i], &works[i])));
    ASSERT_TRUE(posted->arrive_and_wait(2, 20));
    for (int i = 0; i < 4 && comm.rank() == 0; ++i)
      ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, 9, i, 3), 1, 9)));
    for (size_t i = 0; i < 4 && comm.rank() == 1; ++i) {
      ASSERT_TRUE(is_ok(works[i].wait()));
      EXPECT_EQ(got[i], tagged_data(0, 1, 9, static_cast<int>(i), 3));
      EXPECT_EQ(sources[i], 0);
    }
  });
}

// Collectives and ordered messages go on while receives wait for their messages, on the same pairs of ranks.
TEST_P(Tags, OtherCallsGoOnWhileAReceiveWaits) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    const Rank next = (comm.rank() + 1) % 3, last = (comm.rank() + 2) % 3;
    for (int round = 0; round < 10; ++round) {
      const uint64_t count = round % 2 == 0 ? 20 : 50000;
      std::vector<int> a(count, -1), b(count, -1), got(100, -1);
      Rank source = -7;
      Work first, second;
      ASSERT_TRUE(is_ok(recv_tagged(comm, a, kAnyRank, 1, &source, &first)));
      ASSERT_TRUE(is_ok(recv_tagged(comm, b, last, 2, nullptr, &second)));
      EXPECT_TRUE(works(comm, 1000));
      EXPECT_TRUE(works(comm, 100000));
      std::vector<int> ordered = tagged_data(comm.rank(), next, 3, round, 100);
      group_start();
      EXPECT_TRUE(is_ok(comm.recv(got.data(), got.size(), Dtype::kInt32, last)));
      EXPECT_TRUE(is_ok(comm.send(ordered.data(), ordered.size(), Dtype::kInt32, next)));
      ASSERT_TRUE(is_ok(group_end()));
      EXPECT_EQ(got, tagged_data(last, comm.rank(), 3, round, 100));
      EXPECT_EQ(first.test().code(), StatusCode::kInProgress);
      EXPECT_EQ(second.test().code(), StatusCode::kInProgress);
      EXPECT_TRUE(works(comm, 10));  // all ranks have tested
      Work sent;
      const std::vector<int> two = tagged_data(comm.rank(), next, 2, round, count);
      const std::vector<int> one = tagged_data(comm.rank(), next, 1, round, count);
      ASSERT_TRUE(is_ok(send_tagged(comm, two, next, 2, &sent)));
      EXPECT_TRUE(works(comm, 500));
      ASSERT_TRUE(is_ok(send_tagged(comm, one, next, 1)));
      ASSERT_TRUE(is_ok(first.wait()));
      ASSERT_TRUE(is_ok(second.wait()));
      ASSERT_TRUE(is_ok(sent.wait()));
      EXPECT_EQ(source, last);
      EXPECT_EQ(a, tagged_data(last, comm.rank(), 1, round, count));
      EXPECT_EQ(b, tagged_data(last, comm.rank(), 2, round, count));
    }
  });
}

// A receive is called before two collectives, the second of which waits for the first. Its sender makes these only
// after its message was taken.
TEST_P(Tags, AReceiveDoesNotWaitForLaterCalls) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr uint64_t kCount = 2'000'000;
    std::vector<int> data = tagged_data(0, 1, 4, 0, kCount), got(kCount, -1);
    std::vector<int64_t> x(5000, 1);
    Work received, sums[2];
    auto start_sums = [&] {  // the second reads the result of the first
      for (Work& w : sums)
        ASSERT_TRUE(is_ok(comm.all_reduce(x.data(), x.data(), x.size(), Dtype::kInt64, Op::kSum, nullptr, &w)));
    };
    if (comm.rank() == 1) {
      ASSERT_TRUE(is_ok(recv_tagged(comm, got, kAnyRank, 4, nullptr, &received)));
      start_sums();
      ASSERT_TRUE(is_ok(received.wait()));
      EXPECT_EQ(got, data);
    } else {
      ASSERT_TRUE(is_ok(send_tagged(comm, data, 1, 4)));
      start_sums();
    }
    for (Work& w : sums) ASSERT_TRUE(is_ok(w.wait()));
    EXPECT_EQ(x, std::vector<int64_t>(5000, 4));
  });
}

TEST_P(Tags, ALargeUnexpectedMessage) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr uint64_t kCount = 4'000'000;
    if (comm.rank() == 0) {  // blocking: the large message must be taken before the small one can be sent
      ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, 1, 0, kCount), 1, 1)));
      ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, 2, 0, 4), 1, 2)));
      return;
    }
    std::vector<int> small(4, -1), large(kCount, -1);
    ASSERT_TRUE(is_ok(recv_tagged(comm, small, 0, 2)));
    EXPECT_EQ(small, tagged_data(0, 1, 2, 0, 4));
    ASSERT_TRUE(is_ok(recv_tagged(comm, large, kAnyRank, 1)));
    EXPECT_EQ(large, tagged_data(0, 1, 1, 0, kCount));
  });
}

// The second receive takes a message of which only a part has arrived.
TEST_P(Tags, AnUnexpectedMessageIsTakenWhileItArrives) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    constexpr uint64_t kCount = 4'000'000;
    for (int round = 0; round < 3; ++round) {
      std::vector<int> small(4, -1), large(kCount, -1);
      Work a, b;
      if (comm.rank() == 0) {
        ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, 1, round, kCount), 1, 1)));
        ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(0, 1, 2, round, 4), 1, 2)));
        continue;
      }
      ASSERT_TRUE(is_ok(recv_tagged(comm, small, 0, 2, nullptr, &a)));
      for (const Stopwatch watch; watch.seconds() < 0.0005 * round;) std::this_thread::yield();
      ASSERT_TRUE(is_ok(recv_tagged(comm, large, kAnyRank, 1, nullptr, &b)));
      ASSERT_TRUE(is_ok(a.wait()));
      ASSERT_TRUE(is_ok(b.wait()));
      ASSERT_EQ(small, tagged_data(0, 1, 2, round, 4));
      ASSERT_EQ(large, tagged_data(0, 1, 1, round, kCount));
    }
  });
}

TEST_P(Tags, WithoutElementsThereIsAMessage) {
  Shared<Barrier> tested;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    Work work;
    Rank source = -7;
    if (comm.rank() == 1) {
      const CallOptions o = tagged(3, &source);
      ASSERT_TRUE(is_ok(comm.recv(nullptr, 0, Dtype::kFloat32, kAnyRank, &o, &work)));
      EXPECT_EQ(work.test().code(), StatusCode::kInProgress) << "nothing was sent";
    }
    ASSERT_TRUE(tested->arrive_and_wait(2, 20));
    const CallOptions o = tagged(3);
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(comm.send(nullptr, 0, Dtype::kFloat32, 1, &o)));
    } else {
      ASSERT_TRUE(is_ok(work.wait()));
      EXPECT_EQ(source, 0);
    }
  });
}

TEST_P(Tags, ToTheOwnRank) {
  for (const int nranks : {1, 2})
    spawn(GetParam(), nranks, [](Communicator& comm) {
      const Rank me = comm.rank();
      std::vector<int> small(10, -1), large(600'000, -1);
      Rank source = -7;
      ASSERT_TRUE(is_ok(send_tagged(comm, tagged_data(me, me, 1, 0, 10), me, 1)));  // fits into the connection
      const std::vector<int> data = tagged_data(me, me, 2, 0, 600'000);
      Work sent;
      ASSERT_TRUE(is_ok(send_tagged(comm, data, me, 2, &sent)));
      ASSERT_TRUE(is_ok(recv_tagged(comm, large, kAnyRank, 2, &source)));
      EXPECT_EQ(source, me);
      ASSERT_TRUE(is_ok(recv_tagged(comm, small, me, 1)));
      ASSERT_TRUE(is_ok(sent.wait()));
      EXPECT_EQ(large, data);
      EXPECT_EQ(small, tagged_data(me, me, 1, 0, 10));
    });
}

// All pairs at once, also to the own rank, larger than a connection's memory. Ranks list the calls in any order.
TEST_P(Tags, GroupedAmongAll) {
  for (const int nranks : {1, 3, 4})
    spawn(GetParam(), nranks, [nranks](Communicator& comm) {
      std::mt19937 random(static_cast<unsigned>(comm.rank()));
      for (const uint64_t count : {5u, 0u, 700001u}) {
        struct Message {
          Rank peer;
          uint64_t tag;
          bool sends;
          std::vector<int> data;
        };
        std::vector<Message> calls;
        for (Rank r = 0; r < nranks; ++r)
          for (uint64_t tag = 0; tag < 2; ++tag) {
            calls.push_back({r, tag, true, tagged_data(comm.rank(), r, tag, 0, count)});
            calls.push_back({r, tag, false, std::vector<int>(count, -1)});
          }
        std::ranges::shuffle(calls, random);
        group_start();
        for (Message& m : calls)
          EXPECT_TRUE(
              is_ok(m.sends ? send_tagged(comm, m.data, m.peer, m.tag) : recv_tagged(comm, m.data, m.peer, m.tag)));
        ASSERT_TRUE(is_ok(group_end()));
        for (const Message& m : calls)
          if (!m.sends) {
            ASSERT_EQ(m.data, tagged_data(m.peer, comm.rank(), m.tag, 0, count)) << "from " << m.peer;
          }
      }
    });
}

TEST_P(Tags, OfTwoCommunicators) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    auto twin = comm.split(0, 0);
    ASSERT_TRUE(is_ok(twin.status()));
    std::vector<std::vector<int>> data;
    std::vector<Work> works(4);
    for (int i = 0; i < 4; ++i)
      data.push_back(comm.rank() == 0 ? tagged_data(0, 1, 7, i, 50'000) : std::vector<int>(50'000, -1));
    for (int k = 0; k < 4; ++k) {
      const auto i = static_cast<size_t>(comm.rank() == 0 ? k : (k + 1) % 2 + k / 2 * 2);  // 1 0 3 2
      Communicator& on = i % 2 == 0 ? comm : **twin;
      ASSERT_TRUE(is_ok(comm.rank() == 0 ? send_tagged(on, data[i], 1, 7, &works[i])
                                         : recv_tagged(on, data[i], kAnyRank, 7, nullptr, &works[i])));
    }
    for (Work& w : works) ASSERT_TRUE(is_ok(w.wait()));
    for (int i = 0; i < 4 && comm.rank() == 1; ++i)
      EXPECT_EQ(data[static_cast<size_t>(i)], tagged_data(0, 1, 7, i, 50'000)) << i;
  });
}

/// All messages of a random exchange among some ranks, equal on all of them.
class TagExchange {
 public:
  struct Message {
    Rank from, to;
    uint64_t tag;
    int number;  // among those with equal tag and ranks
    uint64_t count;
  };
  TagExchange(uint64_t seed, int nranks) : random_(seed), nranks_(nranks) {
    const int num = 20 + static_cast<int>(below(60));
    std::vector<int> numbers(static_cast<size_t>(nranks * nranks) * kTags, 0);
    for (int i = 0; i < num; ++i) {
      Message m{below_ranks(), below_ranks(), below(kTags), 0, 0};
      m.number = numbers[(static_cast<size_t>(m.from * nranks + m.to)) * kTags + m.tag]++;
      m.count = below(4) == 0 ? below(200'000) : below(300);
      if (from_any(m.tag)) m.count = 40 * m.tag;  // the receiver does not know which message it gets
      messages_.push_back(m);
    }
  }
  /// Tags that this exchange receives from any rank.
  static bool from_any(uint64_t tag) { return tag % 2 == 1; }

  /// Makes this rank's calls in an order of its own, and checks the results.
  void run(Communicator& comm) {
    struct Pending {
      Message message;
      bool sends;
      std::vector<int> data;
      Rank source = -7;
      Work work = {};
    };
    std::vector<Pending> calls;
    for (const Message& m : messages_) {
      if (m.from == comm.rank()) calls.push_back({m, true, tagged_data(m.from, m.to, m.tag, m.number, m.count)});
      if (m.to == comm.rank()) calls.push_back({m, false, std::vector<int>(m.count, -1)});
    }
    random_.seed(random_() + static_cast<uint64_t>(comm.rank()));
    // Messages of equal ranks and tag keep their order: each takes one of their places.
    std::ranges::shuffle(calls, random_);
    for (const bool sends : {true, false}) {
      std::vector<int> next(static_cast<size_t>(nranks_ * nranks_) * kTags, 0);
      for (Pending& c : calls) {
        if (c.sends != sends) continue;
        const int number =
            next[(static_cast<size_t>(c.message.from * nranks_ + c.message.to)) * kTags + c.message.tag]++;
        c.message = *std::ranges::find_if(messages_, [&](const Message& m) {
          return m.from == c.message.from && m.to == c.message.to && m.tag == c.message.tag && m.number == number;
        });
        c.data = sends ? tagged_data(c.message.from, c.message.to, c.message.tag, number, c.message.count)
                       : std::vector<int>(c.message.count, -1);
      }
    }
    for (Pending& c : calls) {
      const Message& m = c.message;
      const bool any = from_any(m.tag);
      ASSERT_TRUE(is_ok(c.sends ? send_tagged(comm, c.data, m.to, m.tag, &c.work)
                                : recv_tagged(comm, c.data, any ? kAnyRank : m.from, m.tag, &c.source, &c.work)));
    }
    std::ranges::shuffle(order_of(calls.size()), random_);
    for (const size_t i : order_) ASSERT_TRUE(is_ok(calls[i].work.wait()));
    std::vector<int> next(static_cast<size_t>(nranks_) * kTags, 0);
    for (const Pending& c : calls) {
      if (c.sends) continue;
      if (!from_any(c.message.tag)) {
        ASSERT_EQ(c.source, c.message.from);
      }
      ASSERT_TRUE(c.source >= 0 && c.source < nranks_);
      const int number = next[static_cast<size_t>(c.source) * kTags + c.message.tag]++;
      ASSERT_EQ(c.data, tagged_data(c.source, comm.rank(), c.message.tag, number, c.message.count));
    }
  }

 private:
  static constexpr uint64_t kTags = 5;
  uint64_t below(uint64_t n) { return random_() % n; }
  Rank below_ranks() { return static_cast<Rank>(below(static_cast<uint64_t>(nranks_))); }
  std::vector<size_t>& order_of(size_t n) {
    order_.resize(n);
    for (size_t i = 0; i < n; ++i) order_[i] = i;
    return order_;
  }
  std::mt19937_64 random_;
  int nranks_;
  std::vector<Message> messages_;
  std::vector<size_t> order_;
};

TEST_P(Tags, RandomExchangesAmongManyRanks) {
  const uint64_t seed = stress_seed(0);
  const int rounds = stress_factor() * (kSanitized ? 6 : 20);
  for (const int nranks : {2, 5, 9})
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (int i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
        TagExchange(seed * 1000 + static_cast<uint64_t>(i), nranks).run(comm);
        EXPECT_TRUE(works(comm));  // a receive from any rank could get a message of the next round
      }
    });
}

TEST_P(Tags, DestroyWaitsForAPostedReceive) {
  spawn_owning(GetParam(), 2, [](std::unique_ptr<Communicator> comm) {
    std::vector<int> got(50'000, -1);
    if (comm->rank() == 0) {
      ASSERT_TRUE(is_ok(send_tagged(*comm, tagged_data(0, 1, 1, 0, 20), 1, 1)));  // no recv takes it
      ASSERT_TRUE(is_ok(send_tagged(*comm, tagged_data(0, 1, 2, 0, 50'000), 1, 2)));
      return;
    }
    {
      Work dropped;
      ASSERT_TRUE(is_ok(recv_tagged(*comm, got, kAnyRank, 2, nullptr, &dropped)));
    }
    ASSERT_TRUE(is_ok(comm->finalize()));
    EXPECT_EQ(got, tagged_data(0, 1, 2, 0, 50'000));
  });
}

// A large unexpected message is still arriving when its receiver leaves.
TEST_P(Tags, DestroyWhileAnUnexpectedMessageArrives) {
  spawn_owning(GetParam(), 2, [](std::unique_ptr<Communicator> comm) {
    std::vector<int> got(4, -1);
    const std::vector<int> large = tagged_data(0, 1, 1, 0, 3'000'000), small = tagged_data(0, 1, 2, 0, 4);
    Work a, b;
    if (comm->rank() == 0) {
      ASSERT_TRUE(is_ok(send_tagged(*comm, large, 1, 1, &a)));
      ASSERT_TRUE(is_ok(send_tagged(*comm, small, 1, 2, &b)));
      ASSERT_TRUE(is_ok(b.wait()));
      ASSERT_TRUE(is_ok(a.wait()));
    } else {
      ASSERT_TRUE(is_ok(recv_tagged(*comm, got, 0, 2)));
      EXPECT_EQ(got, small);
      comm.reset();
    }
  });
}

}  // namespace rondo::testing
