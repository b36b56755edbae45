// Passes driven by begin and end of each use give the same bits and log as the plan's list. They also work if units are
// left out, come in another order, or fail.
#pragma once

#include "fsdp/hooks.h"

namespace rondo::fsdp::testing {

class FsdpPass : public ::testing::TestWithParam<World> {};

TEST_P(FsdpPass, DoesWhatTheListSays) {
  for (const int n : {1, 2, 3, 8})
    for (const Strategy strategy : kStrategies)
      for (const bool root : {false, true}) {
        Setting s;
        s.net.root = root;
        s.plan = {.nranks = n, .strategy = strategy};
        s.by = by_hooks({});
        expect_same_training(GetParam(), s);
      }
}

TEST_P(FsdpPass, WithEveryPrefetchAndMicroBatches) {
  for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
    for (const int ahead : {0, 2})
      for (const int buffers : {1, 3}) {
        Setting s;
        s.net = {.layers = 4, .root = false};
        s.plan = {.nranks = 2,
                  .forward_prefetch = ahead,
                  .backward_prefetch = ahead,
                  .backward_order = order,
                  .data_buffers = buffers,
                  .grad_buffers = buffers};
        s.micro_batches = 2;
        s.by = by_hooks({.overlapping = buffers > 1});
        s.as_planned = buffers == 1;  // overlapping reductions come later, after the next gather
        expect_same_training(GetParam(), s);
      }
}

// No rank uses data that has not come, or gathers into or writes to buffers in use: the bits stay if a rank is late.
TEST_P(FsdpPass, RanksThatDawdleGetTheSameBits) {
  for (const int n : {2, 4})
    for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
      for (const int buffers : {1, 2, 3}) {
        Setting s;
        s.net = {.layers = 6, .dim = 13};
        s.plan = {.nranks = n, .backward_order = order, .data_buffers = buffers, .grad_buffers = buffers};
        s.steps = 8;
        s.by = by_hooks({.dawdling = true});
        expect_same_training(GetParam(), s);
      }
}

TEST_P(FsdpPass, RecomputationTakesNoMoreCommunication) {
  for (const Strategy strategy : kStrategies) {
    Setting s;
    s.plan = {.nranks = 2, .strategy = strategy};
    s.by = by_hooks({.recompute = true});
    expect_same_training(GetParam(), s);
  }
}

// Ranks leave out different units, and all of them one: they contribute zeros, and the log still equals the plan's.
TEST_P(FsdpPass, UnitsThatARankLeavesOutContributeZeros) {
  for (const Strategy strategy : kStrategies)
    for (const int micro_batches : {1, 2}) {
      Setting s;
      s.net.layers = 5;
      s.net.skips = [](int rank, int layer) { return layer == 3 || layer == rank; };
      s.plan = {.nranks = 3, .strategy = strategy};
      s.micro_batches = micro_batches;
      s.optimizer.lr = 0.01f;
      s.by = by_hooks({});
      expect_same_training(GetParam(), s, 1e-6f);
    }
}

// A rank that repeats a unit's forward before its backward is at the same list position as one with another unit before
// it.
TEST_P(FsdpPass, RecomputationBesideUnitsThatARankLeavesOut) {
  for (const Strategy strategy : kStrategies)
    for (const int ahead : {0, 1}) {
      Setting s;
      s.net.layers = 5;
      s.net.skips = [](int rank, int layer) { return layer == 3 || layer == rank; };
      s.plan = {.nranks = 3, .strategy = strategy, .forward_prefetch = ahead, .backward_prefetch = ahead};
      s.optimizer.lr = 0.01f;
      s.by = by_hooks({.recompute_first = true});
      expect_same_training(GetParam(), s, 1e-6f);
    }
}

// If gradients stay whole, their reductions come in list order, whatever a rank's backward has reached.
TEST_P(FsdpPass, WhatBackwardDoesNotReachContributesZeros) {
  for (const Strategy strategy : {Strategy::kReplicate, Strategy::kShardOptimizer}) {
    Setting s;
    s.net = {.layers = 5, .root = false};
    s.net.skips = [](int rank, int layer) { return rank == 0 && layer == 2; };
    s.plan = {.nranks = 3, .strategy = strategy};
    s.by = by_hooks({.detached = true});
    expect_same_training(GetParam(), s);
  }
}

// A forward after a unit's backward gathers it again. The next step must not find those parameters.
TEST_P(FsdpPass, NothingStaysThatTheNextStepMakesStale) {
  for (const Strategy strategy : kStrategies)
    for (const bool root : {false, true}) {
      Setting s;
      s.net.root = root;
      s.plan = {.nranks = 2, .strategy = strategy};
      s.by = by_hooks({.late_forward = true});
      s.as_planned = false;
      expect_same_training(GetParam(), s);
    }
}

// A unit in the middle of the model encloses the later ones.
TEST_P(FsdpPass, AUnitAroundOthersStaysUntilItsBackward) {
  for (const Strategy strategy : kStrategies)
    spawn(GetParam(), 2, [&](Communicator& comm) {
      const TinyNet net{.layers = 4, .root = false};
      Model model = net.model();
      model.units[1].encloses = true;
      const auto plan = Plan::build(model, {.nranks = 2, .strategy = strategy});
      ASSERT_TRUE(plan.ok());
      ASSERT_TRUE(check_actions(*plan, plan->step()).ok());
      auto made = Engine::create(*plan, comm, {.optimizer = {.rule = Rule::kSgd, .lr = 1}, .deterministic = true});
      ASSERT_TRUE(made.ok());
      Engine& e = **made;
      fill(e);
      for (int step = 1; step <= 2; ++step) {
        e.clear_log();
        PassOn pass(e, net, static_cast<uint64_t>(step * 10000 + comm.rank()));
        ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
        ASSERT_TRUE(forward_of(e, net, pass, 0, comm.rank(), 0).ok());
        ASSERT_TRUE(e.begin(Act::kForward, 1).ok());
        pass.forward_layer(1, floats(e.data(1, 0)), floats(e.data(1, 1)));
        for (const int l : {2, 3}) ASSERT_TRUE(forward_of(e, net, pass, l, comm.rank(), l).ok());
        EXPECT_TRUE(e.is_here(1));
        ASSERT_TRUE(e.end(Act::kForward, 1).ok());
        pass.start_backward(nullptr);
        for (const int l : {3, 2, 1, 0}) {
          EXPECT_TRUE(l == 0 || e.is_here(1));
          if (l == 3) {
            ASSERT_TRUE(e.begin(Act::kBackward, 1).ok());
          }
          if (l != 1) {
            ASSERT_TRUE(e.begin(Act::kBackward, l).ok());
          }
          pass.backward_layer(l, floats(e.data(l, 0)), floats(e.grad(l, 0)), floats(e.grad(l, 1)));
          ASSERT_TRUE(e.end(Act::kBackward, l).ok());
        }
        ASSERT_TRUE(e.end_pass().ok());
        ASSERT_TRUE(e.step().ok());
        EXPECT_EQ(e.log().size(), plan->communications(comm.rank()).size());
      }
      const Parameters alone = train_alone(net, {.rule = Rule::kSgd, .lr = 1}, 2, 1, 2);
      for (const Part& p : e.parts()) {
        const UnitPlan& unit = plan->units()[static_cast<size_t>(p.unit)];
        const auto& expected = alone.at(key(unit.name, unit.tensors[p.tensor].name));
        EXPECT_EQ(std::memcmp(p.master, expected.data() + p.first, p.num_elems * sizeof(float)), 0) << unit.name;
      }
    });
}

// Layers have another order in the plan than in use. Once adopted, that order needs no more gathers than the plan's.
TEST_P(FsdpPass, AnotherOrderIsServedAndAdopted) {
  for (const bool adopt : {false, true}) {
    TinyNet net{.layers = 4, .root = false};
    const std::vector<int> order = {2, 0, 3, 1};
    spawn(GetParam(), 2, [&](Communicator& comm) {
      Model model;
      for (const int place : {1, 3, 0, 2}) model.units.push_back(net.model().units[static_cast<size_t>(place)]);
      const auto plan = Plan::build(model, {.nranks = 2});
      ASSERT_TRUE(plan.ok());
      auto made = Engine::create(*plan, comm, {.optimizer = {.rule = Rule::kSgd, .lr = 1}, .deterministic = true});
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      Engine& e = **made;
      fill(e);
      for (int step = 1; step <= 3; ++step) {
        e.clear_log();
        const Status ran = by_hooks({.order = order, .adopt = adopt})(e, net, step, 1, comm.rank());
        ASSERT_TRUE(ran.ok()) << ran.to_string();
        if (adopt && step > 1) {
          EXPECT_EQ(e.log().size(), plan->communications(comm.rank()).size());
        } else {
          EXPECT_GE(e.log().size(), plan->communications(comm.rank()).size());
          const auto reductions = std::count_if(e.log().begin(), e.log().end(),
                                                [](const Communication& c) { return c.act == Act::kReduce; });
          EXPECT_EQ(reductions, 4);  // each unit once
        }
      }
      if (adopt) {
        EXPECT_EQ(e.order().forward, order);
      }
      const Parameters alone = train_alone(net, {.rule = Rule::kSgd, .lr = 1}, 2, 1, 3);
      for (const Part& p : e.parts()) {
        const UnitPlan& unit = plan->units()[static_cast<size_t>(p.unit)];
        const auto& expected = alone.at(key(unit.name, unit.tensors[p.tensor].name));
        EXPECT_EQ(std::memcmp(p.master, expected.data() + p.first, p.num_elems * sizeof(float)), 0) << unit.name;
      }
    });
  }
}

// One step from the same start, by the engine's optimizer and by the caller's: the same parameters up to lr * clip.
TEST_P(FsdpPass, ClippingAndAnOptimizerOfTheCallers) {
  for (const int shard_ranks : {0, 2})
    spawn(GetParam(), 4, [&](Communicator& comm) {
      TinyNet net;
      const auto plan = Plan::build(net.model(), {.nranks = 4, .shard_ranks = shard_ranks});
      ASSERT_TRUE(plan.ok());
      std::vector<float> results[2];
      for (const bool own : {false, true}) {
        auto made = Engine::create(
            *plan, comm, {.optimizer = {.rule = Rule::kSgd, .lr = 0.5f}, .deterministic = true, .clip_norm = 0.01});
        ASSERT_TRUE(made.ok());
        Engine& e = **made;
        auto masters = [&] {
          std::vector<float> all;
          for (const Part& p : e.parts())
            all.insert(all.end(), static_cast<float*>(p.master), static_cast<float*>(p.master) + p.num_elems);
          return all;
        };
        fill(e);
        const std::vector<float> before = masters();
        const Status ran = by_hooks({.own_optimizer = own})(e, net, 1, 1, comm.rank());
        ASSERT_TRUE(ran.ok()) << ran.to_string();
        const std::vector<float> after = results[own] = masters();
        double square = 0;
        for (size_t i = 0; i < after.size(); ++i) {
          const double d = static_cast<double>(after[i]) - static_cast<double>(before[i]);
          square += d * d;
        }
        ASSERT_TRUE(comm.all_reduce(&square, &square, 1, Dtype::kFloat64, Op::kSum).ok());
        EXPECT_NEAR(std::sqrt(square / (shard_ranks == 0 ? 1 : 4 / shard_ranks)), 0.5 * 0.01, 1e-5);
        EXPECT_EQ(e.optimizer_steps(), 1);
      }
      for (size_t i = 0; i < results[0].size(); ++i) ASSERT_NEAR(results[0][i], results[1][i], 1e-7);
    });
}

// The root is used to the end.
TEST_P(FsdpPass, ForwardOnlyListsKeepTheRoot) {
  for (const Strategy strategy : kStrategies)
    spawn(GetParam(), 2, [&](Communicator& comm) {
      TinyNet net;
      const auto plan = Plan::build(net.model(), {.nranks = 2, .strategy = strategy});
      ASSERT_TRUE(plan.ok());
      const auto list = plan->pass(PassKind::kForwardOnly);
      ASSERT_TRUE(check_actions(*plan, list).ok());
      auto made = Engine::create(*plan, comm, {});
      ASSERT_TRUE(made.ok());
      fill(**made);
      const Status ran = (*made)->run(list, [&](Act, int) -> Status {
        EXPECT_NE((*made)->data(0, 0), nullptr);
        return {};
      });
      ASSERT_TRUE(ran.ok()) << ran.to_string();
      const bool gathers = strategy == Strategy::kShardAll || strategy == Strategy::kShardGradients;
      EXPECT_EQ((*made)->is_here(0), !gathers);
    });
}

TEST_P(FsdpPass, ForwardOnlyLeavesNothingBehind) {
  for (const Strategy strategy : kStrategies)
    spawn(GetParam(), 2, [&](Communicator& comm) {
      TinyNet net;
      const auto plan = Plan::build(net.model(), {.nranks = 2, .strategy = strategy});
      ASSERT_TRUE(plan.ok());
      auto made = Engine::create(*plan, comm, {});
      ASSERT_TRUE(made.ok());
      Engine& e = **made;
      fill(e);
      const bool gathers = strategy == Strategy::kShardAll || strategy == Strategy::kShardGradients;
      for (int i = 0; i < 2; ++i) {
        e.clear_log();
        ASSERT_TRUE(e.begin_pass(PassKind::kForwardOnly).ok());
        PassOn pass(e, net, 1);
        ASSERT_TRUE(e.begin(Act::kForward, 0).ok());
        for (int l = 0; l < net.layers; ++l) ASSERT_TRUE(forward_of(e, net, pass, l, comm.rank(), l + 1).ok());
        ASSERT_TRUE(forward_of(e, net, pass, 0, comm.rank(), 1).ok());  // again: at once, and then released
        EXPECT_TRUE(e.is_here(0));
        ASSERT_TRUE(e.end(Act::kForward, 0).ok());
        EXPECT_EQ(e.begin(Act::kBackward, 1).code(), StatusCode::kInvalidArgument);
        ASSERT_TRUE(e.end_pass().ok());
        EXPECT_EQ(e.log().size(), gathers ? 5u : 0u);
        for (int u = 0; u < 4; ++u) EXPECT_EQ(e.is_here(u), !gathers);
        EXPECT_EQ(e.step().code(), StatusCode::kInvalidArgument);
      }
    });
}

// During forward and during backward. Afterwards it trains as usual.
TEST_P(FsdpPass, ACancelledPassLeavesTheEngineUsable) {
  for (const Strategy strategy : kStrategies) {
    Setting s;
    s.plan = {.nranks = 2, .strategy = strategy};
    s.as_planned = false;
    s.by = [](Engine& e, const TinyNet& net, int step, int micro_batches, int rank) -> Status {
      PassOn pass(e, net, 5);
      RONDO_TRY(e.begin_pass(PassKind::kTrain));
      RONDO_TRY(e.begin(Act::kForward, 0));
      RONDO_TRY(forward_of(e, net, pass, 0, rank, 1));
      EXPECT_EQ(e.begin_pass(PassKind::kTrain).code(), StatusCode::kInvalidArgument);
      RONDO_TRY(e.cancel_pass());
      RONDO_TRY(e.begin_pass(PassKind::kTrain));
      RONDO_TRY(e.begin(Act::kForward, 0));
      for (int l = 0; l < net.layers; ++l) RONDO_TRY(forward_of(e, net, pass, l, rank, l + 1));
      RONDO_TRY(e.end(Act::kForward, 0));
      RONDO_TRY(e.begin(Act::kBackward, net.layers));
      compute(e, [at = floats(e.grad(net.layers, 0))] { at[0] = 1e9f; });
      RONDO_TRY(e.end(Act::kBackward, net.layers));
      RONDO_TRY(e.begin(Act::kBackward, net.layers - 1));
      RONDO_TRY(e.cancel_pass());
      return by_hooks({})(e, net, step, micro_batches, rank);
    };
    expect_same_training(GetParam(), s);
  }
}

TEST_P(FsdpPass, MisuseIsNamed) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    TinyNet net{.layers = 4, .root = false};
    const auto plan = Plan::build(net.model(), {.nranks = 2, .data_buffers = 1, .grad_buffers = 1});
    ASSERT_TRUE(plan.ok());
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok());
    Engine& e = **made;
    fill(e);
    auto fails = [&](const Status& s, std::initializer_list<const char*> words) {
      EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.to_string();
      for (const char* w : words) EXPECT_NE(s.message().find(w), std::string::npos) << s.to_string();
    };
    fails(e.begin(Act::kForward, 0), {"begin_pass"});
    fails(e.step(), {"begin_pass"});
    ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
    fails(e.begin(Act::kGather, 0), {"kForward"});
    fails(e.begin(Act::kForward, 7), {"no unit 7"});
    fails(e.end(Act::kForward, 1), {"'layer1'", "not begun"});
    ASSERT_TRUE(e.begin(Act::kForward, 0).ok());
    fails(e.begin(Act::kForward, 1), {"'layer1'", "'layer0'"});  // one within the other, in one buffer
    ASSERT_TRUE(e.cancel_pass().ok());
    ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
    ASSERT_TRUE(e.begin(Act::kForward, 0).ok());
    fails(e.end_pass(), {"'layer0'"});
    fails(e.step(), {"end_pass"});
    fails(e.adopt_order(), {"end_pass"});
    fails(e.begin_pass(PassKind::kTrain), {"cancel_pass"});
    ASSERT_TRUE(e.cancel_pass().ok());
    ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
    ASSERT_TRUE(e.end_pass().ok());
    fails(e.begin_pass(PassKind::kTrain), {"step", "kAccumulate"});  // its gradients would be lost or counted twice
    fails(e.begin_pass(PassKind::kForwardOnly), {"step"});
    ASSERT_TRUE(e.step().ok());
    int calls = 0;
    const auto breaks = [&](Act, int) -> Status {
      return ++calls == 3 ? Status(StatusCode::kInternal, "broken") : Status();
    };
    EXPECT_EQ(e.run(plan->step(), breaks).code(), StatusCode::kInternal);
    fails(e.run(plan->step(), breaks), {"cancel_pass"});
    fails(e.begin_pass(PassKind::kTrain), {"cancel_pass"});
    ASSERT_TRUE(e.cancel_pass().ok());
    ASSERT_TRUE(e.run(plan->step(), breaks).ok());
    ASSERT_TRUE(comm.barrier().ok());
  });
}

// Without a forward the list cannot predict uses: units that it reduced as unused must not be lost silently.
TEST_P(FsdpPass, BackwardAfterItsReductionIsNamed) {
  for (const bool own : {false, true})
    spawn(GetParam(), 2, [own](Communicator& comm) {
      const TinyNet net{.layers = 2, .root = true};
      const auto plan = Plan::build(net.model(), {.nranks = 2, .strategy = Strategy::kShardOptimizer});
      ASSERT_TRUE(plan.ok());
      auto made = Engine::create(*plan, comm, {});
      ASSERT_TRUE(made.ok());
      Engine& e = **made;
      fill(e);
      ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
      ASSERT_TRUE(e.begin(Act::kBackward, 0).ok());
      for (const int u : {1, 2}) {
        ASSERT_TRUE(e.begin(Act::kBackward, u).ok());
        if (own) floats(e.grad(u, 0))[0] = 1;
        ASSERT_TRUE(e.end(Act::kBackward, u).ok());
      }
      ASSERT_TRUE(e.end(Act::kBackward, 0).ok());
      const Status s = e.end_pass();
      EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.to_string();
      EXPECT_NE(s.message().find("'layer"), std::string::npos) << s.to_string();
      EXPECT_NE(s.message().find("after its gradients were reduced"), std::string::npos) << s.to_string();
      EXPECT_TRUE(e.cancel_pass().ok());
    });
}

// Reduced sums are where the gradients were computed: another micro-batch would overwrite them.
TEST_P(FsdpPass, ASecondReductionOfWholeGradientsIsRefused) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    const TinyNet net{.layers = 1, .root = false};
    const auto plan = Plan::build(net.model(), {.nranks = 2, .strategy = Strategy::kReplicate});
    ASSERT_TRUE(plan.ok());
    auto made = Engine::create(*plan, comm, {});
    ASSERT_TRUE(made.ok());
    Engine& e = **made;
    fill(e);
    ASSERT_TRUE(e.begin_grads(0).ok());
    ASSERT_TRUE(e.reduce(0).ok());
    ASSERT_TRUE(e.wait_reduce(0).ok());
    const Status s = e.begin_grads(0);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.to_string();
    EXPECT_NE(s.message().find("second time in a step"), std::string::npos) << s.to_string();
    EXPECT_TRUE(e.step(0).ok());
    EXPECT_TRUE(e.finish_step().ok());
    EXPECT_TRUE(e.begin_grads(0).ok());
  });
}

}  // namespace rondo::fsdp::testing
