// Training through the adapter: the bits of one process, the plan's communications, torch's own optimizers, BatchNorm.
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
    if (comm.rank() > 0) fill(*net, 99);  // rank 0's count
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

// Whole gradients of several micro-batches add per rank first: another order of the same sum.
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
        optimizer.zero_grad();  // as people do
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

// Ten patterns of 8 x 8 and noise on them.
struct Digits {
  Tensor images, labels;
  Digits(int count, uint64_t seed) {
    labels = ::torch::arange(count) % 10;
    images = random({10, 1, 8, 8}, 3).sign().index_select(0, labels) + 0.8 * random({count, 1, 8, 8}, seed);
  }
};

struct DigitsNetImpl : nn::Module {
  DigitsNetImpl() {
    register_module("features", features);
    head = register_module("head", Linear(16 * 4 * 4, 10));
    fill(*this);
  }
  Tensor forward(Tensor x) { return ::torch::log_softmax(head(features->forward(x).flatten(1)), 1); }
  nn::Sequential features{nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)),
                          nn::BatchNorm2d(8),
                          nn::ReLU(),
                          nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)),
                          nn::BatchNorm2d(16),
                          nn::ReLU(),
                          nn::MaxPool2d(2)};
  Linear head{nullptr};
};
RONDO_TORCH_MODULE(DigitsNet);

TEST(TorchTraining, BatchNormAndAdadeltaWithAStepScheduleConverge) {
  ::at::set_num_threads(1);
  const fsdp::OptimizerConfig adadelta{.rule = fsdp::Rule::kAdadelta, .lr = 1, .eps = 1e-6f};
  constexpr int kRanks = 2, kDigitSteps = 40;
  auto rate = [](int step) { return step > 25 ? 0.5f : 1.0f; };
  auto loss = [](auto& net, int step, int, int r) {
    const Digits d(20, static_cast<uint64_t>(step * 10 + r));
    return ::torch::nll_loss(net->forward(d.images), d.labels);
  };
  const Values alone = train_alone(DigitsNet(), adadelta, kRanks, 1, kDigitSteps, loss, rate);
  for (const Policy& p : {wrap_types<nn::Conv2dImpl>(), min_params(500)})
    spawn_ranks(kRanks, [&](Communicator& comm) {
      DigitsNet net;
      auto sharded = fully_shard(net, comm, {.policy = p, .engine = {.optimizer = adadelta, .deterministic = true}});
      EXPECT_GE(sharded.plan().units().size(), 2u);
      double first = 0, last = 0;
      for (int step = 1; step <= kDigitSteps; ++step) {
        const Digits d(20, static_cast<uint64_t>(step * 10 + comm.rank()));
        const Tensor l = ::torch::nll_loss(sharded(d.images), d.labels);
        (step == 1 ? first : last) = l.item<double>();
        l.backward();
        sharded.set_learning_rate(rate(step));
        sharded.step();
      }
      EXPECT_LT(last, first / 10);
      expect_values(sharded, alone, 1e-6);
      net->eval();
      const ::torch::NoGradGuard no_grad;
      const Digits d(50, 4711);
      EXPECT_GT(sharded(d.images).argmax(1).eq(d.labels).to(::torch::kFloat).mean().item<double>(), 0.9);
    });
}

}  // namespace
}  // namespace rondo::torch::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
