// Queries without running: CallOptions::check_only and Communicator::forecast_us.
// labels: unit tsan
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "rondo/communicator.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

std::vector<std::unique_ptr<Communicator>> two_ranks() {
  auto comms = Communicator::init_all(2);
  EXPECT_TRUE(is_ok(comms.status()));
  return std::move(*comms);
}

TEST(CheckOnly, RefusesWhatACallRefusesAndRunsNothing) {
  auto comms = two_ranks();
  CallOptions options;
  options.check_only = true;
  std::vector<float> data(10, 1.0f);
  Communicator& c = *comms[0];  // a single rank: a real call would wait for the other
  EXPECT_TRUE(is_ok(c.all_reduce(data.data(), data.data(), 10, Dtype::kFloat32, Op::kSum, &options)));
  EXPECT_EQ(data[0], 1.0f);
  EXPECT_TRUE(fails_with(c.all_reduce(data.data(), data.data() + 1, 5, Dtype::kFloat32, Op::kSum, &options),
                         StatusCode::kInvalidArgument, {"overlap"}));
  EXPECT_TRUE(fails_with(c.broadcast(data.data(), data.data(), 1, Dtype::kFloat32, 2, &options),
                         StatusCode::kInvalidArgument, {"root is 2"}));
  options.algorithm = "no_such";
  EXPECT_TRUE(fails_with(c.all_reduce(data.data(), data.data(), 10, Dtype::kFloat32, Op::kSum, &options),
                         StatusCode::kInvalidArgument, {"no_such"}));
}

TEST(CheckOnly, LeavesAGroupEmpty) {
  auto comms = two_ranks();
  CallOptions options;
  options.check_only = true;
  float x = 1;
  group_start();
  EXPECT_TRUE(is_ok(comms[0]->all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &options)));
  EXPECT_TRUE(is_ok(group_end()));
  EXPECT_EQ(x, 1.0f);
}

TEST(Forecast, IsEqualOnAllRanksAndGrowsWithTheCall) {
  auto comms = two_ranks();
  const auto of = [&](int rank, uint64_t count, const char* algorithm) {
    CallOptions options;
    options.algorithm = algorithm;
    auto us = comms[static_cast<size_t>(rank)]->forecast_us(Collective::kAllReduce, count, Dtype::kFloat32, Op::kSum, 0,
                                                            &options);
    EXPECT_TRUE(is_ok(us.status()));
    return us.ok() ? *us : -1.0;
  };
  for (const uint64_t count : {10u, 10000u, 1000000u}) {
    EXPECT_GT(of(0, count, nullptr), 0.0);
    EXPECT_EQ(of(0, count, nullptr), of(1, count, nullptr));
    EXPECT_LE(of(0, count, nullptr), of(0, count, "ring"));  // the free choice is the best one
  }
  EXPECT_LT(of(0, 10, nullptr), of(0, 1000000, nullptr));
}

TEST(Forecast, SaysWhatCannotBe) {
  auto comms = two_ranks();
  CallOptions options;
  options.algorithm = "ring";
  options.promises = RONDO_PROMISE_RANK_ORDER;  // a ring does not keep this promise
  EXPECT_EQ(comms[0]->forecast_us(Collective::kAllReduce, 100, Dtype::kFloat32, Op::kSum, 0, &options).status().code(),
            StatusCode::kUnsupported);
  EXPECT_TRUE(fails_with(comms[0]->forecast_us(Collective::kReduce, 100, Dtype::kFloat32, Op::kSum, 2).status(),
                         StatusCode::kInvalidArgument, {"root is 2"}));
  EXPECT_EQ(comms[0]->forecast_us(Collective::kSend, 100, Dtype::kFloat32, Op::kSum).status().code(),
            StatusCode::kUnsupported);
  EXPECT_TRUE(is_ok(comms[0]->forecast_us(Collective::kAllReduce, 9, Dtype::kFloat32, Op::kPremulSum).status()));
}

}  // namespace
}  // namespace rondo::testing
