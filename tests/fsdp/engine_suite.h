// Training on the engine: same bits as one process that adds the ranks' gradients, with every strategy; the log equals
// the plan's; misuse is reported.
#pragma once

#include "fsdp/training.h"
#include "rondo/trace.h"
#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"

namespace rondo::fsdp::testing {

class FsdpEngine : public ::testing::TestWithParam<World> {};

TEST_P(FsdpEngine, EveryStrategyTrainsAsOneProcessDoes) {
  for (const int n : {1, 2, 3, 4, 8})
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

// A ring adds each part in another order: it must not be used, even if requested.
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

// If gradients stay whole, a rank adds its own micro-batches before the reduction: another order of the same sum.
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
    fails(e.set_learning_rate(-1), {"lr", "-1"});
    EXPECT_TRUE(e.set_learning_rate(0.5f).ok());
    EXPECT_EQ(e.optimizer().lr, 0.5f);
    EXPECT_EQ(e.data(0, 0), nullptr);
    fails(e.wait_gather(0), {"'layer0'", "not gathered"});
    ASSERT_TRUE(e.gather(0).ok());
    fails(e.gather(2), {"'layer2'", "'layer0'", "not released"});  // both use one buffer in turn
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
    fails(e.release(0), {"not gathered"});
    fails(e.step(3), {"'layer3'", "no gradients"});
    ASSERT_TRUE(comm.barrier().ok());
  });
}

// The trace shows units, their buffers from gather to release, compute and waits, in plan order.
TEST_P(FsdpEngine, TracesShowUnitsBuffersAndWaits) {
  rondo::testing::TemporaryFolder folder;
  const TinyNet net;
  const Options options{.nranks = 2};
  spawn(GetParam(), 2, [&](Communicator& comm) {
    const auto plan = Plan::build(net.model(), options);
    ASSERT_TRUE(plan.ok());
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok());
    fill(**made);
    ASSERT_TRUE(trace_start(comm, {folder.path()}).ok());
    ASSERT_TRUE(train_step(**made, net, 1, 1, comm.rank()).ok());
    ASSERT_TRUE(trace_stop(comm).ok());
    ASSERT_TRUE(train_step(**made, net, 2, 1, comm.rank()).ok());  // not traced
    const Stats stats = (*made)->stats();
    EXPECT_EQ(stats.gathers, 2 * 7u);
    EXPECT_EQ(stats.reductions, 2 * 4u);
    uint64_t payload = 0;
    for (const Communication& c : plan->communications(comm.rank())) payload += 2 * c.payload_bytes;
    EXPECT_EQ(stats.payload_bytes, payload);
    EXPECT_GT(stats.gather_wait_ns + stats.reduce_wait_ns, 0u);
  });
  const auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 2u);
  const auto plan = Plan::build(net.model(), options);
  for (const TraceFile& f : *files) {
    std::vector<std::string> computed, expected, waited, awaited;
    std::map<std::string, std::vector<const TraceSpan*>> held;
    for (const TraceSpan& s : f.spans) {
      if (s.track == "fsdp compute") computed.push_back(s.name);
      if (s.track == "fsdp waits") waited.push_back(s.name);
      if (s.track.starts_with("fsdp buffer ") || s.track.starts_with("fsdp gradient buffer "))
        held[s.track].push_back(&s);
    }
    for (const Action& a : plan->step()) {
      const std::string& unit = plan->units()[static_cast<size_t>(a.unit)].name;
      if (a.act == Act::kForward) expected.push_back("forward " + unit);
      if (a.act == Act::kBackward) expected.push_back("backward " + unit);
      if (a.act == Act::kStep) expected.push_back("step " + unit);
      if (a.act == Act::kWaitGather) awaited.push_back("gather " + unit);
      if (a.act == Act::kWaitReduce) awaited.push_back("reduction " + unit);
    }
    EXPECT_EQ(computed, expected);
    EXPECT_EQ(waited, awaited);
    EXPECT_EQ(held.size(), static_cast<size_t>(plan->num_data_buffers() + plan->num_grad_buffers()));
    for (const auto& [track, spans] : held)  // one unit at a time
      for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1]->end, spans[i]->begin) << track;
  }
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
