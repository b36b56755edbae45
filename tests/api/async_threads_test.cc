// Asynchronous work and groups with ranks as threads, and one thread that drives several ranks.
// labels: unit tsan
// timeout: 120
#include "api/async_suite.h"
#include "api/work_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Async, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

class OneThread : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto made = Communicator::init_all(GetParam());
    ASSERT_TRUE(is_ok(made.status()));
    comms_ = std::move(*made);
    ASSERT_EQ(comms_.size(), static_cast<size_t>(GetParam()));
  }
  std::vector<std::unique_ptr<Communicator>> comms_;
};

TEST_P(OneThread, DrivesAllRanksInAGroup) {
  for (const uint64_t count : {0u, 1u, 1009u, 400000u}) {
    std::vector<std::unique_ptr<SimpleAllReduce>> calls;
    group_start();
    for (auto& comm : comms_) {
      calls.push_back(std::make_unique<SimpleAllReduce>(*comm, count));
      ASSERT_TRUE(is_ok(calls.back()->start(*comm, nullptr)));
    }
    ASSERT_TRUE(is_ok(group_end()));
    for (const auto& call : calls) EXPECT_EQ(call->judge(), "");
  }
}

TEST_P(OneThread, DrivesSeveralCallsOfAllRanksInAGroup) {
  std::vector<std::unique_ptr<SimpleAllReduce>> calls;
  group_start();
  for (auto& comm : comms_) {  // rank by rank, so ranks must not wait for one another in this order
    for (const uint64_t count : {100u, 30000u, 5u}) {
      calls.push_back(std::make_unique<SimpleAllReduce>(*comm, count));
      ASSERT_TRUE(is_ok(calls.back()->start(*comm, nullptr)));
    }
  }
  ASSERT_TRUE(is_ok(group_end()));
  for (const auto& call : calls) EXPECT_EQ(call->judge(), "");
}

TEST_P(OneThread, DrivesAllRanksByAsynchronousCalls) {
  std::vector<std::unique_ptr<SimpleAllReduce>> calls;
  std::vector<Work> works(comms_.size());
  for (size_t r = 0; r < comms_.size(); ++r) {
    calls.push_back(std::make_unique<SimpleAllReduce>(*comms_[r], 100000));
    ASSERT_TRUE(is_ok(calls[r]->start(*comms_[r], &works[r])));
  }
  for (size_t r = comms_.size(); r-- > 0;) {
    ASSERT_TRUE(is_ok(works[r].wait()));
    EXPECT_EQ(calls[r]->judge(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneThread, ::testing::Values(1, 2, 3, 8));

}  // namespace rondo::testing
