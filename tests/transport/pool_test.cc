// The staging pool by itself: its size, zeros, what is kept until all ranks have departed, forks.
// labels: unit tsan
#include "transport/pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/process_state.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

using Pool = StagingPool;
using Range = Pool::Range;
constexpr uint64_t kMiB = uint64_t{1} << 20;

/// RONDO_POOL_BYTES during a test.
struct PoolBytes {
  explicit PoolBytes(const char* text) { setenv("RONDO_POOL_BYTES", text, 1); }
  ~PoolBytes() { unsetenv("RONDO_POOL_BYTES"); }
};

std::shared_ptr<Pool> pool() {
  auto p = Pool::acquire();
  EXPECT_TRUE(is_ok(p.status()));
  return p.ok() ? *p : nullptr;
}
std::byte* at(Pool& p, const Range& r) { return *p.base() + r.offset; }
bool all_zero(const std::byte* from, uint64_t bytes) {
  return std::all_of(from, from + bytes, [](std::byte b) { return b == std::byte{0}; });
}

TEST(RangeList, NeverGivesARangeTwiceAndJoinsNeighbours) {
  constexpr uint64_t kTotal = 512;
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    RangeList list;
    list.give(0, kTotal);
    std::vector<bool> taken(kTotal, false);
    std::vector<std::pair<uint64_t, uint64_t>> held;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 2 == 0 || held.empty()) {
        const uint64_t bytes = 1 + random() % 40, align = uint64_t{1} << random() % 5;
        const auto got = list.take(bytes, align);
        bool possible = false;
        for (uint64_t o = 0; o + bytes <= kTotal && !possible; o += align)
          possible = std::none_of(taken.begin() + static_cast<long>(o), taken.begin() + static_cast<long>(o + bytes),
                                  [](bool t) { return t; });
        ASSERT_EQ(got.has_value(), possible) << bytes << " at " << align;
        if (!got) continue;
        ASSERT_EQ(*got % align, 0u);
        for (uint64_t o = *got; o < *got + bytes; ++o) {
          ASSERT_FALSE(taken[o]);
          taken[o] = true;
        }
        held.emplace_back(*got, bytes);
      } else {
        std::swap(held[random() % held.size()], held.back());
        const auto [offset, bytes] = held.back();
        held.pop_back();
        for (uint64_t o = offset; o < offset + bytes; ++o) taken[o] = false;
        list.give(offset, bytes);
      }
    }
    for (const auto& [offset, bytes] : held) list.give(offset, bytes);
    EXPECT_EQ(list.take(kTotal, 1), 0u) << "everything came back, so it must be one range again";
  }
}

TEST(PoolSize, IsWhatTheEnvironmentSays) {
  EXPECT_EQ(*Pool::configured_bytes(), uint64_t{16} << 30);
  for (const auto& [text, bytes] : {std::pair{"16777216", 16 * kMiB},
                                    {"16M", 16 * kMiB},
                                    {"20480K", 20 * kMiB},
                                    {"2G", 2048 * kMiB},
                                    {"1T", kMiB << 20},
                                    {"33554433", 34 * kMiB}}) {
    PoolBytes set(text);
    ASSERT_TRUE(is_ok(Pool::configured_bytes().status()));
    EXPECT_EQ(*Pool::configured_bytes(), bytes) << text;
  }
  for (const char* text : {"x", "15M", "-1", "16m", "16MB", "99999999T", "99999999999999999999999", " "}) {
    PoolBytes set(text);
    EXPECT_TRUE(fails_with(Pool::acquire().status(), StatusCode::kInvalidArgument, {"RONDO_POOL_BYTES", text}));
  }
}

TEST(Pool, WhatIsTakenAgainIsZero) {
  auto p = pool();
  for (const auto use : {Pool::Use::kSmall, Pool::Use::kData}) {
    const uint64_t bytes = use == Pool::Use::kData ? 2 * kMiB : 12288;
    uint64_t first = 0;
    for (int i = 0; i < 5; ++i) {
      auto r = p->take(bytes, use);
      ASSERT_TRUE(is_ok(r.status()));
      if (i == 0) first = r->offset;
      EXPECT_EQ(r->offset, first) << "the same place, or the test says nothing";
      ASSERT_TRUE(all_zero(at(*p, *r), bytes)) << "round " << i;
      std::memset(at(*p, *r), 0xA5, bytes);
      p->give_back({&*r, 1});
    }
  }
  EXPECT_EQ(p->usage().used_bytes, 0u);
}

TEST(Pool, TakenAndChargedBytesTogetherStayWithinItsSize) {
  PoolBytes set("32M");
  auto p = pool();
  std::vector<Range> held;
  Status end;
  for (int i = 0; end.ok(); ++i) {
    ASSERT_LE(i, 16);
    if (i % 2 == 0) {
      end = p->charge(2 * kMiB);
    } else {
      auto r = p->take(2 * kMiB, Pool::Use::kData);
      if (r.ok()) held.push_back(*r);
      else end = r.status();
    }
  }
  EXPECT_EQ(held.size(), 8u);
  EXPECT_EQ(p->usage().used_bytes, 32 * kMiB);
  EXPECT_TRUE(fails_with(end, StatusCode::kExhausted, {"32 MiB", "RONDO_POOL_BYTES", "2 MiB"}));
  EXPECT_TRUE(fails_with(p->take(4096, Pool::Use::kSmall).status(), StatusCode::kExhausted, {}));
  EXPECT_TRUE(fails_with(p->charge(1), StatusCode::kExhausted, {}));
  p->give_back({held.data(), 1});
  EXPECT_TRUE(is_ok(p->charge(2 * kMiB)));
  p->discharge(2 * kMiB);
  EXPECT_TRUE(is_ok(p->take(2 * kMiB, Pool::Use::kData).status()));
}

TEST(Pool, EndsWithItsLastHolder) {
  auto p = pool();
  EXPECT_EQ(p, pool()) << "one for the process";
  auto r = p->take(2 * kMiB, Pool::Use::kData);
  ASSERT_TRUE(is_ok(r.status()));
  void* const memory = at(*p, *r);
  EXPECT_EQ(msync(memory, 4096, MS_ASYNC), 0);
  p.reset();
  EXPECT_EQ(msync(memory, 4096, MS_ASYNC), -1) << "it is still mapped";
}

TEST(Pool, ManyThreadsTakeAndGiveBack) {
  auto p = pool();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&p, t] {
      const auto mark = static_cast<std::byte>(t + 1);
      for (int i = 0; i < 100; ++i) {
        auto r = p->take(8192, Pool::Use::kSmall);
        ASSERT_TRUE(is_ok(r.status()));
        std::byte* m = at(*p, *r);
        ASSERT_TRUE(all_zero(m, r->bytes));
        std::fill(m, m + r->bytes, mark);
        ASSERT_TRUE(std::all_of(m, m + r->bytes, [&](std::byte b) { return b == mark; })) << "somebody else's too";
        p->give_back({&*r, 1});
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(p->usage().used_bytes, 0u);
}

/// Something that ranks which have not departed yet may access.
struct Deferred {
  std::shared_ptr<Pool> p = pool();
  std::shared_ptr<std::vector<uint8_t>> marks = std::make_shared<std::vector<uint8_t>>(3);
  std::shared_ptr<int> object = std::make_shared<int>(1);
  std::weak_ptr<int> watched = object;
  void free_later(std::vector<ProcessName> ranks) {
    p->free_later({marks->data(), std::move(ranks), {marks, std::move(object)}});
  }
  void depart(size_t rank) { std::atomic_ref<uint8_t>((*marks)[rank]).store(1, std::memory_order_release); }
  /// After a look, as whoever takes more has it.
  bool is_kept() {
    EXPECT_TRUE(is_ok(p->charge(0)));
    return !watched.expired();
  }
};

TEST(Pool, AnObjectIsKeptUntilEveryRankHasDeparted) {
  Deferred d;
  const ProcessName here = ProcessName::self();
  d.free_later({here, here, here});
  for (const size_t rank : {2, 0}) {
    d.depart(rank);
    EXPECT_TRUE(d.is_kept()) << "a rank that has not departed may still read it";
  }
  d.depart(1);
  EXPECT_FALSE(d.is_kept());
}

TEST(Pool, TheDeadLeaveNoMark) {
  Deferred d;
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    const ProcessName me = ProcessName::self();
    if (write(said[1], &me, sizeof me) != sizeof me) _exit(1);
    pause();
    _exit(0);
  }
  ProcessName name;
  ASSERT_EQ(read(said[0], &name, sizeof name), static_cast<ssize_t>(sizeof name));
  close(said[0]);
  close(said[1]);
  EXPECT_EQ(name.pid, child);
  EXPECT_FALSE(name.ended());
  ProcessName earlier = name;  // an earlier owner of the process id
  earlier.start_ticks -= 1;
  EXPECT_TRUE(earlier.ended());
  ProcessName elsewhere = name;
  elsewhere.pid_namespace += 1;
  EXPECT_FALSE(elsewhere.ended()) << "cannot be seen from here, so it counts as living";

  d.free_later({ProcessName::self(), name});
  d.depart(0);
  EXPECT_TRUE(d.is_kept());
  kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);  // ended, but still a zombie
  EXPECT_TRUE(name.ended());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(name.ended());
  const Stopwatch watch;  // who has ended is looked at every 10 ms
  while (d.is_kept() && watch.seconds() < 10) sched_yield();
  EXPECT_FALSE(d.is_kept());
}

TEST(Pool, AForkedChildHasItsOwn) {
  auto p = pool();
  auto r = p->take(4096, Pool::Use::kSmall);
  ASSERT_TRUE(is_ok(r.status()));
  at(*p, *r)[0] = std::byte{1};
  const pid_t child = fork();
  if (child == 0) {
    if (p->is_of_this_process()) _exit(1);
    auto mine = Pool::acquire();
    if (!mine.ok() || *mine == p) _exit(2);
    auto range = (*mine)->take(4096, Pool::Use::kSmall);
    if (!range.ok() || !all_zero(at(**mine, *range), 4096)) _exit(3);
    at(**mine, *range)[0] = std::byte{2};
    mine = Status(StatusCode::kInternal, "let go");
    p.reset();  // unmaps nothing here
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(at(*p, *r)[0], std::byte{1});
}

}  // namespace
}  // namespace rondo::testing
