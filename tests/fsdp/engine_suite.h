// Training on the engine: the same bits as one process that adds the ranks' gradients, with every strategy; the log is
// the plan's; misuse is named.
#pragma once

#include "fsdp/training.h"

namespace rondo::fsdp::testing {

class FsdpEngine : public ::testing::TestWithParam<World> {};

TEST_P(FsdpEngine, EveryStrategyTrainsAsOneProcessDoes) {
  for (const int n : {1, 2, 3, 4})
    for (const Strategy strategy :
         {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll})
      for (const bool root : {false, true}) {
        Setting s;
        s.net.root = root;
        s.plan.nranks = n;
        s.plan.strategy = strategy;
        expect_same_training(GetParam(), s);
      }
}

// A ring adds in another order for each part: it must not be taken, even where it is asked for.
TEST_P(FsdpEngine, DeterministicMeansTheOrderOfRanks) {
  for (const Strategy strategy : {Strategy::kReplicate, Strategy::kShardAll}) {
    Setting s;
    s.plan.nranks = 4;
    s.plan.strategy = strategy;
    s.communicator = "algo = ring\n";
    expect_same_training(GetParam(), s);
  }
}

TEST_P(FsdpEngine, PrefetchAndBuffersChangeNoBit) {
  for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
    for (const int ahead : {0, 2})
      for (const int buffers : {1, 3})
        for (const bool keep : {false, true}) {
          Setting s;
          s.net.layers = 4;
          s.plan = {.nranks = 3,
                    .forward_prefetch = ahead,
                    .backward_prefetch = ahead,
                    .backward_order = order,
                    .keep_last = keep,
                    .data_buffers = buffers,
                    .grad_buffers = buffers};
          expect_same_training(GetParam(), s);
        }
}

// Where gradients stay whole, a rank adds its own micro-batches before any are reduced: another order of the same sum.
TEST_P(FsdpEngine, MicroBatchesAddUp) {
  for (const bool root : {false, true})
    for (const Strategy strategy :
         {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients, Strategy::kShardAll}) {
      Setting s;
      s.net.root = root;
      s.plan.nranks = 2;
      s.plan.strategy = strategy;
      s.micro_batches = 3;
      s.optimizer.lr = 0.01f;
      const bool whole = strategy == Strategy::kReplicate || strategy == Strategy::kShardOptimizer || root;
      expect_same_training(GetParam(), s, whole ? 1e-6f : 0);
    }
}

TEST_P(FsdpEngine, HybridTrainsAsOneProcessDoes) {
  Setting s;
  s.plan.nranks = 4;
  s.plan.shard_ranks = 2;
  s.optimizer.lr = 0.01f;
  expect_same_training(GetParam(), s, 1e-6f);  // first within the groups, then across
}

TEST_P(FsdpEngine, EveryOptimizerAndOneRankMoreThanRows) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdam, Rule::kAdamW, Rule::kAdadelta}) {
    Setting s;
    s.net.dim = 3;
    s.plan.nranks = 5;
    s.optimizer = {.rule = rule};
    s.optimizer.lr = 0.05f;
    s.optimizer.weight_decay = 0.01f;
    s.optimizer.momentum = 0.9f;
    expect_same_training(GetParam(), s);
  }
}

TEST_P(FsdpEngine, MisuseIsNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    TinyNet net{.layers = 4, .root = false};
    const auto plan = Plan::build(net.model(), {.nranks = 2});
    ASSERT_TRUE(plan.ok());
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    Engine& e = **made;
    fill(e);
    auto fails = [&](const Status& s, std::initializer_list<const char*> words) {
      EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.to_string();
      for (const char* w : words) EXPECT_NE(s.message().find(w), std::string::npos) << s.to_string();
    };
    fails(e.gather(9), {"no unit 9"});
    EXPECT_EQ(e.data(0, 0), nullptr);
    fails(e.wait_gather(0), {"'layer0'", "not gathered"});
    ASSERT_TRUE(e.gather(0).ok());
    fails(e.gather(2), {"'layer2'", "'layer0'", "not released"});  // both take turns in one buffer
    EXPECT_EQ(e.data(0, 0), nullptr);
    ASSERT_TRUE(e.wait_gather(0).ok());
    EXPECT_NE(e.data(0, 0), nullptr);
    EXPECT_EQ(e.grad(0, 0), nullptr);
    fails(e.reduce(0), {"'layer0'", "begin_grads"});
    ASSERT_TRUE(e.begin_grads(0).ok());
    EXPECT_NE(e.grad(0, 0), nullptr);
    fails(e.begin_grads(2), {"'layer2'", "'layer0'"});
    fails(e.step(0), {"'layer0'", "before its gradients"});
    ASSERT_TRUE(e.reduce(0).ok());
    EXPECT_EQ(e.grad(0, 0), nullptr);
    fails(e.begin_grads(2), {"'layer2'", "'layer0'"});
    ASSERT_TRUE(e.wait_reduce(0).ok());
    fails(e.wait_reduce(0), {"not under way"});
    ASSERT_TRUE(e.begin_grads(2).ok());
    ASSERT_TRUE(e.release(0).ok());
    fails(e.release(0), {"not here"});
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(FsdpEngine, RanksWithOtherPlansFindOut) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    TinyNet net{.layers = comm.rank() == 0 ? 3 : 4};
    const auto plan = Plan::build(net.model(), {.nranks = 2});
    ASSERT_TRUE(plan.ok());
    const auto made = Engine::create(*plan, comm, {});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kMismatch) << made.status().to_string();
  });
}

}  // namespace rondo::fsdp::testing
