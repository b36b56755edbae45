// Staging memory of communicators whose ranks are threads.
// labels: unit tsan
// timeout: 300
#include "transport/staging_suite.h"

#include <thread>

namespace rondo::testing {
namespace {

using Comms = std::vector<std::unique_ptr<Communicator>>;

Comms make(int nranks, const Config& config = {}) {
  auto comms = Communicator::init_all(nranks, config);
  EXPECT_TRUE(is_ok(comms.status()));
  return comms.ok() ? std::move(*comms) : Comms();
}

/// Runs fn(comm) in a thread for each rank.
template <class Fn>
void on_all(Comms& comms, Fn fn) {
  std::vector<std::thread> threads;
  for (auto& comm : comms) threads.emplace_back([&fn, &comm] { fn(*comm); });
  for (std::thread& t : threads) t.join();
}

TEST(StagingOfThreads, AThousandCommunicatorsLeaveNothingBehind) {
  constexpr int kWarmUp = 10, kTotal = kSanitized ? 60 : 1010;
  Comms parent = make(2);  // so that the pool stays
  std::unique_ptr<HeldMemory> before;
  for (int i = 0; i < kTotal; ++i) {
    if (i == kWarmUp) before = std::make_unique<HeldMemory>();
    Comms comms = make(3);
    ASSERT_EQ(comms.size(), 3u);
    on_all(comms, [&](Communicator& comm) { ASSERT_TRUE(works_through_slots(comm)) << "communicator " << i; });
  }
  expect_no_more(*before, HeldMemory());
}

TEST(StagingOfThreads, AThousandUnusedCommunicatorsAtOnceTakeLittle) {
  constexpr int kTotal = kSanitized ? 50 : 1000;
  const uint64_t resident = resident_bytes();
  std::vector<Comms> all;
  for (int i = 0; i < kTotal; ++i) all.push_back(make(4));
  if (!kSanitized) {
    EXPECT_LE(resident_bytes() - resident, uint64_t{kTotal} * 4 * (256 << 10)) << "promised: 2 MiB a rank";
  }
  on_all(all[0], [](Communicator& comm) { EXPECT_TRUE(works_through_slots(comm)); });
  on_all(all.back(), [](Communicator& comm) { EXPECT_TRUE(works_through_slots(comm)); });
}

TEST(StagingOfThreads, AFullPoolIsNamedToAllRanks) {
  setenv("RONDO_POOL_BYTES", "16M", 1);
  Comms comms = make(4);
  unsetenv("RONDO_POOL_BYTES");
  ASSERT_EQ(comms.size(), 4u);
  std::vector<Status> ends(4);
  const Stopwatch watch;
  on_all(comms, [&](Communicator& comm) {
    CallOptions options;
    SimpleAllReduce call(comm, 60000);
    for (const char* algorithm : {"ring", "two_shot", "tree", "one_shot"}) {
      options.algorithm = algorithm;
      Status& end = ends[static_cast<size_t>(comm.rank())];
      if (end.ok()) end = call.start(comm, nullptr, &options);
    }
  });
  EXPECT_LT(watch.seconds(), 30) << "not at the deadline of 600 s";
  int exhausted = 0;
  for (const Status& end : ends) {
    exhausted += end.code() == StatusCode::kExhausted;
    EXPECT_TRUE(end.code() == StatusCode::kExhausted || end.code() == StatusCode::kAborted) << end.to_string();
    EXPECT_NE(end.to_string().find("RONDO_POOL_BYTES"), std::string::npos) << end.to_string();
    EXPECT_NE(end.to_string().find("16 MiB"), std::string::npos) << end.to_string();
  }
  EXPECT_GE(exhausted, 1);
  for (auto& comm : comms) {
    EXPECT_NE(std::string(comm->error().message()).find("RONDO_POOL_BYTES"), std::string::npos);
    EXPECT_TRUE(
        fails_with(SimpleAllReduce(*comm, 10).start(*comm, nullptr), StatusCode::kAborted, {"RONDO_POOL_BYTES"}));
  }
  Comms parent = make(1);  // the pool stays 16 MiB
  comms.clear();
  EXPECT_EQ(pool_usage().size_bytes, uint64_t{16} << 20);
  comms = make(2);
  on_all(comms, [&](Communicator& comm) { EXPECT_TRUE(works_through_slots(comm)) << "there is room again"; });
}

TEST(StagingOfThreads, ACommunicatorThatDoesNotFitIsRefused) {
  setenv("RONDO_POOL_BYTES", "16M", 1);
  Comms parent = make(1);
  unsetenv("RONDO_POOL_BYTES");
  const uint64_t used_bytes = pool_usage().used_bytes;
  EXPECT_TRUE(fails_with(Communicator::init_all(200).status(), StatusCode::kExhausted, {"RONDO_POOL_BYTES"}));
  EXPECT_EQ(pool_usage().used_bytes, used_bytes) << "the memory of the first ranks was returned";
}

// Old flags in reused memory would look like messages.
TEST(StagingOfThreads, MemoryUsedAgainIsClean) {
  Comms parent = make(1);
  const char* algorithms[] = {"ring", "two_shot", "tree", "recursive_doubling", "one_shot"};
  for (int i = 0; i < (kSanitized ? 15 : 100); ++i) {
    Comms comms = make(2 + i % 3);
    on_all(comms, [&](Communicator& comm) {
      for (int k = 0; k < 3; ++k) {
        ASSERT_TRUE(works_through_slots(comm, algorithms[(i + k) % 5])) << i;
        ASSERT_TRUE(works(comm, 30)) << i;
      }
    });
  }
}

// Ranks as threads of one process that joined one by one use the shared backing: all have the same pool.
TEST(StagingOfThreads, RanksThatJoinedOneByOneShareThePool) {
  auto id = Communicator::make_unique_id();
  ASSERT_TRUE(is_ok(id.status()));
  std::vector<std::thread> threads;
  for (Rank r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      auto comm = Communicator::init_rank(3, *id, r);
      ASSERT_TRUE(is_ok(comm.status()));
      for (int i = 0; i < 10; ++i) ASSERT_TRUE(works_through_slots(**comm));
      for (int i = 0; i < (kSanitized ? 5 : 30); ++i) {
        auto second = second_communicator(**comm);
        ASSERT_TRUE(is_ok(second.status()));
        ASSERT_TRUE(works_through_slots(**second));
      }
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace rondo::testing
