// Forecast times of a pass: small cases by hand, and bounds for every schedule.
#include "rondo/fsdp/forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace rondo::fsdp {
namespace {

Plan plan_of(int layers, Options options) {
  Model m;
  for (int i = 0; i < layers; ++i) m.units.push_back({"layer" + std::to_string(i), {{"w", {8, 4}}}});
  auto plan = Plan::build(m, options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return *plan;
}

// Two units: 10 us forward, 20 us backward, 4 us gather, 6 us reduction. Forward: gather 0 is exposed (4), gather 1
// hidden. Backward: unit 1 is gathered again (exposed, 4), then unit 0 during its backward. Nothing hides the reduction
// of 0 (6).
TEST(Forecast, OfTwoUnitsByHand) {
  const Plan plan = plan_of(2, {.nranks = 2});
  const std::vector<UnitCosts> costs(2, {.forward_us = 10, .backward_us = 20, .gather_us = 4, .reduce_us = 6});
  const auto f = forecast(plan, plan.step(), costs);
  ASSERT_TRUE(f.ok());
  EXPECT_DOUBLE_EQ(f->compute_us, 60);
  EXPECT_DOUBLE_EQ(f->line_us, 4 * 4 + 2 * 6);
  EXPECT_DOUBLE_EQ(f->exposed_us, 4 + 4 + 6);
  EXPECT_DOUBLE_EQ(f->overlapped_us, 74);
  EXPECT_DOUBLE_EQ(f->serial_us, 88);
}

// Not below the longer of the two, not above their sum. More prefetch never takes longer if all units cost the same.
TEST(Forecast, StaysWithinItsBounds) {
  for (const Strategy strategy :
       {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll})
    for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
      for (const double gather_us : {0.0, 3.0, 50.0}) {
        double without = INFINITY;
        for (const int ahead : {0, 1, 2}) {
          const Plan plan = plan_of(5, {.nranks = 4,
                                        .strategy = strategy,
                                        .forward_prefetch = ahead,
                                        .backward_prefetch = ahead,
                                        .backward_order = order});
          const std::vector<UnitCosts> costs(
              5, {.forward_us = 7, .backward_us = 11, .step_us = 1, .gather_us = gather_us, .reduce_us = 5});
          const auto f = forecast(plan, plan.step(), costs);
          ASSERT_TRUE(f.ok());
          EXPECT_GE(f->overlapped_us, std::max(f->compute_us, f->line_us));
          EXPECT_LE(f->overlapped_us, f->serial_us + 1e-9);
          EXPECT_LE(f->overlapped_us, without + 1e-9) << "prefetch " << ahead;
          without = f->overlapped_us;
        }
      }
}

TEST(Forecast, CostsOfALine) {
  const Plan plan = plan_of(3, {.nranks = 4});
  const auto costs = line_costs(plan, 0.001, 2, 30);  // 1 MB/s: a byte takes a microsecond
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_DOUBLE_EQ(costs[0].gather_us, 2 + 32 * 4 * 0.75);
  EXPECT_DOUBLE_EQ(costs[0].reduce_us, 2 + 32 * 4 * 0.75);
  EXPECT_DOUBLE_EQ(costs[0].backward_us, 60);
  EXPECT_DOUBLE_EQ(line_costs(plan_of(1, {.nranks = 1}), 1, 2, 3)[0].gather_us, 0);
  const auto hybrid = line_costs(plan_of(1, {.nranks = 4, .shard_ranks = 2}), 0.001, 2, 30);
  EXPECT_DOUBLE_EQ(hybrid[0].reduce_us, 2 + 32 * 4 * 0.5 + 2 + 2 * 64 * 0.5);
}

// The command prints these figures.
TEST(Forecast, OfTheDocumentedModel) {
  Model m;
  m.has_root = true;
  m.units.push_back({"root", {{"embedding", {50257, 768}}}});
  for (int i = 0; i < 3; ++i) m.units.push_back({"block" + std::to_string(i), {{"w", {768, 768}}, {"b", {768}}}});
  const auto plan = Plan::build(m, {.nranks = 8});
  ASSERT_TRUE(plan.ok());
  const auto f = forecast(*plan, plan->step(), line_costs(*plan, 20, 30, 900));
  ASSERT_TRUE(f.ok());
  EXPECT_DOUBLE_EQ(f->compute_us, 4 * 3 * 900);
  const double root_bytes = 50257.0 * 768 * 4, block_bytes = (768.0 * 768 + 768) * 4;
  EXPECT_NEAR(f->line_us, 2 * (30 + root_bytes * 7 / 8 / 20e3) + 9 * (30 + block_bytes * 7 / 8 / 20e3), 1e-6);
}

TEST(Forecast, MistakesAreNamed) {
  const Plan plan = plan_of(2, {.nranks = 2});
  EXPECT_NE(forecast(plan, plan.step(), {{}}).status().message().find("1 units"), std::string::npos);
  EXPECT_NE(forecast(plan, plan.step(), {{}, {.gather_us = -1}}).status().message().find("-1 us"), std::string::npos);
  EXPECT_FALSE(forecast(plan, plan.step(), {{}, {.gather_us = NAN}}).ok());
}

}  // namespace
}  // namespace rondo::fsdp
