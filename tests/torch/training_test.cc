// Training through the adapter: same bits as one process, the plan's communications, torch's own optimizers, clipping.
#include "models.h"

namespace rondo::torch::testing {
namespace {

using fsdp::PassKind;
using fsdp::Strategy;

constexpr int kSteps = 3;

struct Case {
  int nranks = 2, blocks = 3, micro_batches = 1;
  int64_t dim = 7;
  Strategy strategy = Strategy::kShardAll;
  Policy policy = wrap_types<BlockImpl>();
  bool recomputes = false;
  fsdp::Options plan = {};
};

Tensor net_loss(Net& net, int step, int m, int r) {
  const Data d = data_of(net->dim, step, m, r);
  return net->forward(d.x, d.y);
}

void expect_same_training(const Case& c, double tolerance = 0) {
  SCOPED_TRACE(::testing::Message() << c.nranks << " ranks, strategy " << static_cast<int>(c.strategy));
  ::at::set_num_threads(1);
  const Values alone = train_alone(Net(c.blocks, c.dim), momentum(), c.nranks, c.micro_batches, kSteps, net_loss);
  spawn_ranks(c.nranks, [&](Communicator& comm) {
    Net net(c.blocks, c.dim);
    net->recomputes = c.recomputes;
    if (comm.rank() > 0) fill(*net, 99);  // rank 0's values are used
    Options o{.policy = c.policy, .plan = c.plan, .engine = {.optimizer = momentum(), .deterministic = true}};
    o.plan.strategy = c.strategy;
    auto sharded = fully_shard(net, comm, o);
    for (int step = 1; step <= kSteps; ++step) {
      sharded.engine().clear_log();
      std::vector<PassKind> passes;
      for (int m = 0; m < c.micro_batches; ++m) {
        const Data d = data_of(c.dim, step, m, comm.rank());
        if (m + 1 == c.micro_batches) {
          passes.push_back(PassKind::kTrain);
          sharded(d.x, d.y).backward();
        } else {
          const auto no_sync = sharded.no_sync();
          passes.push_back(PassKind::kAccumulate);
          sharded(d.x, d.y).backward();
        }
      }
      sharded.step();
      expect_log(sharded, passes, comm.rank());
    }
    if (c.micro_batches == 1) {
      EXPECT_EQ(sharded.engine().owned_bytes(), sharded.plan().memory(comm.rank()).total());
    }
    expect_values(sharded, alone, tolerance);
  });
}

TEST(TorchTraining, EveryStrategyHasTheBitsOfOneProcess) {
  for (const int n : {1, 2, 3, 4})
    for (const Strategy s :
         {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll})
      expect_same_training({.nranks = n, .strategy = s});
}

TEST(TorchTraining, MoreRanksThanRows) { expect_same_training({.nranks = 5, .dim = 2}); }

TEST(TorchTraining, PoliciesChangeNoBit) {
  for (const Policy& p : {one_unit(), min_params(60), wrap_paths({"block1"})}) expect_same_training({.policy = p});
}

TEST(TorchTraining, NestedUnits) {
  expect_same_training({.policy = wrap_paths({"block0", "block0.up", "block1", "block2", "block2.down"})});
}

TEST(TorchTraining, PrefetchAndBuffersChangeNoBit) {
  for (const int ahead : {0, 2})
    for (const auto order : {fsdp::BackwardPrefetch::kPre, fsdp::BackwardPrefetch::kPost})
      expect_same_training(
          {.blocks = 4, .plan = {.forward_prefetch = ahead, .backward_prefetch = ahead, .backward_order = order}});
}

// Whole gradients of several micro-batches are first added per rank: another order of the same sum.
TEST(TorchTraining, MicroBatchesAddUp) {
  for (const Strategy s : {Strategy::kReplicate, Strategy::kShardGradients, Strategy::kShardAll})
    expect_same_training({.micro_batches = 3, .strategy = s}, 1e-6);
}

TEST(TorchTraining, RecomputationHasTheBitsAndGathersNothingMore) {
  for (const Strategy s : {Strategy::kShardGradients, Strategy::kShardAll})
    expect_same_training({.strategy = s, .recomputes = true});
}

TEST(TorchTraining, TorchsOwnOptimizers) {
  ::at::set_num_threads(1);
  Net alone(2, 5);
  ::torch::optim::AdamW one(alone->parameters(), ::torch::optim::AdamWOptions(0.05));
  ::torch::optim::StepLR one_schedule(one, 2, 0.5);
  for (int step = 1; step <= 4; ++step) {
    one.zero_grad();
    ((net_loss(alone, step, 0, 0) + net_loss(alone, step, 0, 1)) / 2).backward();
    one.step();
    one_schedule.step();
  }
  const Values expected = values_of(alone);
  for (const Strategy s : {Strategy::kShardOptimizer, Strategy::kShardAll})
    spawn_ranks(2, [&](Communicator& comm) {
      Net net(2, 5);
      Options o{.policy = wrap_types<BlockImpl>(), .engine = {.optimizer = {.rule = fsdp::Rule::kSgd}}};
      o.plan.strategy = s;
      auto sharded = fully_shard(net, comm, o);
      ::torch::optim::AdamW optimizer(sharded.shards(), ::torch::optim::AdamWOptions(0.05));
      ::torch::optim::StepLR schedule(optimizer, 2, 0.5);
      for (int step = 1; step <= 4; ++step) {
        optimizer.zero_grad();  // as users do
        const Data d = data_of(5, step, 0, comm.rank());
        sharded(d.x, d.y).backward();
        sharded.step(optimizer);
        schedule.step();
      }
      expect_values(sharded, expected, 1e-6);
    });
}

TEST(TorchTraining, ClippingLimitsTheNorm) {
  ::at::set_num_threads(1);
  spawn_ranks(2, [](Communicator& comm) {
    Net net(2, 5);
    const Tensor before = net->scale.detach().clone();
    Options o{.policy = wrap_types<BlockImpl>(), .engine = {.optimizer = {.rule = fsdp::Rule::kSgd, .lr = 1}}};
    o.engine.clip_norm = 1e-3;
    auto sharded = fully_shard(net, comm, o);
    std::vector<Tensor> start;
    for (const Tensor& s : sharded.shards()) start.push_back(s.detach().clone());
    const Data d = data_of(5, 1, 0, comm.rank());
    sharded(d.x, d.y).backward();
    EXPECT_GT(sharded.grad_norm(), 0.01);
    sharded.step();
    double moved = 0, all = 0;
    const auto end = sharded.shards();
    for (size_t i = 0; i < end.size(); ++i) moved += (end[i].detach() - start[i]).square().sum().item<double>();
    ASSERT_TRUE(comm.all_reduce(&moved, &all, 1, Dtype::kFloat64, Op::kSum).ok());
    EXPECT_NEAR(std::sqrt(all), 1e-3, 1e-5);
  });
}

}  // namespace
}  // namespace rondo::torch::testing
