// Autograd's saved values of a unit, and the possible paths of backward through the calls of a pass: views, outputs
// that change in place, calls with dropped results, recomputation; tensors from before the pass; exceptions that the
// model catches; the module after a failure of fully_shard.
#include <c10/core/InferenceMode.h>

#include <random>

#include "models.h"

namespace rondo::torch::testing {
namespace {

using fsdp::Strategy;

struct StageImpl : nn::Module {
  StageImpl() { linear = register_module("linear", nn::Linear(4, 4)); }
  Tensor forward(Tensor x) { return way ? way(*this, x) : linear(x); }
  nn::Linear linear{nullptr};
  std::function<Tensor(StageImpl&, Tensor)> way;
};
RONDO_TORCH_MODULE(Stage);

/// Stages within an outermost unit that has its own parameter. Each test defines their use.
struct ChainImpl : nn::Module {
  using Way = std::function<Tensor(std::vector<Stage>&, Tensor x, int rank)>;
  explicit ChainImpl(Way way, int stages = 4) : way(std::move(way)) {
    scale = register_parameter("scale", ::torch::ones({4}));
    for (int i = 0; i < stages; ++i) this->stages.push_back(register_module("stage" + std::to_string(i), Stage()));
    fill(*this);
  }
  Tensor forward(Tensor x, int rank) { return way(stages, x * scale, rank).pow(2).mean(); }
  Way way;
  Tensor scale;
  std::vector<Stage> stages;
};
RONDO_TORCH_MODULE(Chain);

Tensor input_of(int step, int rank) { return data_of(4, step, 0, rank).x; }

Options by_stage(Strategy strategy = Strategy::kShardAll) {
  Options o{.policy = wrap_types<StageImpl>(), .engine = {.optimizer = momentum(), .deterministic = true}};
  o.plan.strategy = strategy;
  return o;
}

constexpr Strategy kStrategies[] = {Strategy::kReplicate, Strategy::kShardGradients, Strategy::kShardAll};

/// Same bits as one process, each unit reduced once. `prepare` runs on the model of every rank.
void expect_same(const ChainImpl::Way& way, int nranks = 2, const std::function<void(Chain&)>& prepare = {},
                 std::initializer_list<Strategy> strategies = {kStrategies[0], kStrategies[1], kStrategies[2]}) {
  constexpr int kSteps = 3;
  ::at::set_num_threads(1);
  auto fresh = [&] {
    Chain chain(way);
    if (prepare) prepare(chain);
    return chain;
  };
  const Values alone = train_alone(fresh(), momentum(), nranks, 1, kSteps, [](Chain& chain, int step, int, int r) {
    return chain->forward(input_of(step, r), r);
  });
  for (const Strategy s : strategies) {
    SCOPED_TRACE(::testing::Message() << "strategy " << static_cast<int>(s));
    spawn_ranks(nranks, [&](Communicator& comm) {
      Chain chain = fresh();
      Options o = by_stage(s);
      o.plan.forward_prefetch = o.plan.backward_prefetch = 0;
      o.plan.data_buffers = 1;  // each unit replaces the previous one
      auto sharded = fully_shard(chain, comm, o);
      for (int step = 1; step <= kSteps; ++step) {
        sharded.engine().clear_log();
        sharded(input_of(step, comm.rank()), comm.rank()).backward();
        sharded.step();
        std::map<int, int> reductions;
        for (const auto& c : sharded.engine().log()) reductions[c.unit] += c.act == fsdp::Act::kReduce;
        for (int u = 0; u <= 4; ++u) EXPECT_EQ(reductions[u], nranks > 1 ? 1 : 0) << "unit " << u;
      }
      expect_values(sharded, alone);
    });
  }
}

// If an output that is a view is changed, its hooks are lost. Hooks of its base stay.
TEST(TorchAutograd, OutputsThatAreViewsMayBeChangedInPlace) {
  expect_same([](std::vector<Stage>& s, Tensor x, int) {
    for (Stage& stage : s) {
      stage->way = [](StageImpl& self, Tensor t) {
        Tensor y = self.linear(t).view({2, 2, 4});
        EXPECT_TRUE(y.is_view());
        return y;
      };
      x = stage(x.view({4, 4}));
      x.mul_(2).tanh_();
    }
    return x;
  });
}

// Backward's saved inputs are views of a buffer that another unit has by then.
TEST(TorchAutograd, ValuesOfAnotherUnitAreNeverComputedWith) {
  spawn_ranks(2, [](Communicator& comm) {
    Tensor aside;
    Chain chain([&](std::vector<Stage>& s, Tensor x, int) {
      s[0]->way = [&](StageImpl& self, const Tensor& t) {
        aside = self.linear(t);
        return t * 2;
      };
      for (Stage& stage : s) x = stage(x);
      return x.detach() + aside;  // bypasses the output of its call
    });
    Options o = by_stage();
    o.plan.forward_prefetch = o.plan.backward_prefetch = 0;
    o.plan.data_buffers = 1;
    auto sharded = fully_shard(chain, comm, o);
    const Tensor x = input_of(1, comm.rank());
    expect_words(error_of([&] { sharded(x, 0).backward(); }), {"modified by an inplace operation"});
    chain->way = [](std::vector<Stage>& s, Tensor t, int) { return s[1](s[0](t)); };
    chain->stages[0]->way = nullptr;
    sharded(x, 0).backward();  // it still works
    sharded.step();
  });
}

TEST(TorchAutograd, AGraphOfBeforeAStepIsRefused) {
  for (const Strategy s : kStrategies)
    spawn_ranks(2, [s](Communicator& comm) {
      Tensor aside;
      Chain chain([&](std::vector<Stage>& stages, Tensor x, int) {
        stages[0]->way = [&](StageImpl& self, const Tensor& t) {
          if (!aside.defined()) aside = self.linear(t.detach().requires_grad_()).sum();
          return self.linear(t);
        };
        return stages[0](x);
      });
      auto sharded = fully_shard(chain, comm, by_stage(s));
      sharded(input_of(1, comm.rank()), 0).backward();
      sharded.step();
      expect_words(error_of([&] { aside.backward(); }), {"modified by an inplace operation"});
    });
}

TEST(TorchAutograd, TheFirstEvaluationMayBeInInferenceMode) {
  const ChainImpl::Way way = [](std::vector<Stage>& s, Tensor x, int) { return s[1](::torch::tanh(s[0](x))); };
  const Values alone = train_alone(Chain(way, 2), momentum(), 2, 1, 2, [](Chain& chain, int step, int, int r) {
    return chain->forward(input_of(step, r), r);
  });
  Chain plain(way, 2);
  const float expected = plain->forward(input_of(1, 0), 0).item<float>();
  for (const Strategy s : kStrategies)
    for (const bool shards_in_it : {false, true})
      spawn_ranks(2, [&](Communicator& comm) {
        Chain chain(way, 2);
        auto shard = [&] {
          const ::c10::InferenceMode mode(shards_in_it);
          return fully_shard(chain, comm, by_stage(s));
        };
        auto sharded = shard();
        for (int step = 1; step <= 2; ++step) {
          {
            const ::c10::InferenceMode mode;
            const float loss = sharded(input_of(1, 0), 0).item<float>();
            if (step == 1) EXPECT_EQ(loss, expected);
          }
          for (const Tensor& p : chain->parameters()) EXPECT_FALSE(p.is_inference());
          sharded(input_of(step, comm.rank()), comm.rank()).backward();
          sharded.step();
        }
        expect_values(sharded, alone);
      });
}

// Ranks leave out different stages, or stop gradients at them, and repeat the others in backward.
TEST(TorchAutograd, RecomputationBesideStagesThatARankLeavesOut) {
  auto again = [](Stage& stage, const Tensor& x) {
    return recompute([stage](Tensor t) mutable { return stage(t); }, x);
  };
  expect_same(
      [again](std::vector<Stage>& s, Tensor x, int rank) {
        for (size_t i = 0; i < s.size(); ++i)
          if (static_cast<int>(i) != rank + 1) x = ::torch::tanh(again(s[i], x));
        return x;
      },
      3);
}

// A dropped result gets no gradient: of a unit's first call or a later one, on all ranks or on one.
TEST(TorchAutograd, RepeatedCallsWhoseResultsAreDropped) {
  for (const bool first : {true, false})
    for (const bool all : {true, false})
      for (const bool at_the_start : {true, false}) {
        SCOPED_TRACE(::testing::Message() << "first " << first << ", all " << all << ", at the start " << at_the_start);
        expect_same([=](std::vector<Stage>& s, Tensor x, int rank) {
          if (!at_the_start) x = s[0](x);
          Stage& twice = s[at_the_start ? 0 : 1];
          const bool drops = all || rank == 0;
          const Tensor y = twice(x);
          x = s[2](drops && first ? x + y.detach() : y);
          const Tensor z = twice(x);
          x = s[3](drops && !first ? x + z.detach() : z);
          return at_the_start ? s[1](x) : x;
        });
      }
}

// Calls in any order, repeated, without a graph, recomputed, with results dropped on all ranks or on one.
TEST(TorchAutograd, WaysAtRandom) {
  enum How : uint8_t { kPlain, kRecomputed, kNoGraph, kSeveralRecomputed };
  enum Drop : uint8_t { kNowhere, kEverywhere, kOnRank0 };
  struct Use {
    size_t stage;
    How how;
    Drop drop;
  };
  for (uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const bool several = seed % 2 == 1;  // several units in one recomputation are dropped by all ranks or none
    std::vector<Use> uses;
    for (uint32_t i = 3 + random() % 4; i > 0; --i) {
      const size_t stage = random() % 4;
      const uint32_t how = random() % 10, drop = random() % 10;
      uses.push_back({stage,
                      several   ? how < 4 ? kSeveralRecomputed : kPlain
                      : how < 2 ? kRecomputed
                      : how < 3 ? kNoGraph
                                : kPlain,
                      drop < 2   ? kEverywhere
                      : drop < 4 ? several ? kNowhere : kOnRank0
                                 : kNowhere});
    }
    expect_same([uses](std::vector<Stage>& s, Tensor x, int rank) {
      for (const auto& [stage, how, drop] : uses) {
        Stage a = s[stage], b = s[(stage + 1) % 4];
        const ::at::AutoGradMode records(how != kNoGraph);
        Tensor y = how == kRecomputed          ? recompute([a](Tensor t) mutable { return a(t); }, x)
                   : how == kSeveralRecomputed ? recompute([a, b](Tensor t) mutable { return b(b(a(t))); }, x)
                                               : a(x);
        const ::at::AutoGradMode all(true);
        const bool dropped = drop == kEverywhere || (drop == kOnRank0 && rank == 0);
        x = x + ::torch::tanh(dropped ? y.detach() : y);
      }
      return x;
    });
  }
}

// Gradients stop before the first units on one rank. The outermost unit is the last to be reduced on all.
TEST(TorchAutograd, GradientsThatStopAtTheFirstUnitOnOneRank) {
  expect_same([](std::vector<Stage>& s, Tensor x, int rank) {
    const Tensor y = s[1](s[0](x));
    return s[3](s[2](rank == 0 ? y.detach() : y)) + x;
  });
}

// Hooks on tensors from before the pass would still exist in the next one.
TEST(TorchAutograd, OutputsThatWereThereBeforeTheCall) {
  for (const Strategy s : kStrategies)
    spawn_ranks(2, [s](Communicator& comm) {
      const Tensor leaf = input_of(1, comm.rank()).requires_grad_();
      const Tensor inner = leaf * 2;
      Chain chain([&](std::vector<Stage>& stages, Tensor x, int) {
        stages[0]->way = [&](StageImpl&, const Tensor&) { return leaf; };
        stages[1]->way = [&](StageImpl&, const Tensor&) { return inner; };
        if (s == Strategy::kReplicate)  // parameters always have memory
          stages[2]->way = [](StageImpl& self, const Tensor&) { return self.linear->weight; };
        return x + stages[0](x) + stages[1](x) + stages[2](x);
      });
      Options o = by_stage(s);
      o.engine.optimizer.lr = 0;
      auto sharded = fully_shard(chain, comm, o);
      Tensor first;
      for (int step = 1; step <= 3; ++step) {
        leaf.mutable_grad().reset();
        sharded(input_of(1, comm.rank()), 0).backward({}, /*retain_graph=*/true);
        sharded.step();
        if (step == 1) first = leaf.grad().clone();
        EXPECT_TRUE(::torch::equal(leaf.grad(), first));
      }
    });
}

// A model may go on without a unit that has thrown, as if it were left out.
TEST(TorchAutograd, ExceptionsThatTheModelCatches) {
  for (const bool all : {true, false})
    expect_same(
        [all](std::vector<Stage>& s, Tensor x, int rank) {
          s[2]->way = [fails = all || rank == 0](StageImpl& self, const Tensor& t) {
            if (fails) throw std::runtime_error("too long");
            return self.linear(t);
          };
          for (Stage& stage : s) try {
              x = ::torch::tanh(stage(x));
            } catch (const std::runtime_error& e) {
              EXPECT_STREQ(e.what(), "too long");
            }
          return x;
        },
        2);
}

TEST(TorchAutograd, AnErrorOfAUnitsCallThatTheModelCatchesIsNamed) {
  spawn_ranks(2, [](Communicator& comm) {
    std::string caught;
    Chain chain([&](std::vector<Stage>& s, Tensor x, int) {
      s[1]->way = [](StageImpl& self, const Tensor&) { return self.linear->weight.t(); };
      x = s[0](x);
      caught = error_of([&] { x = s[1](x); });
      return x;
    });
    auto sharded = fully_shard(chain, comm, by_stage());
    const std::string rank = "rank " + std::to_string(comm.rank());
    const std::string error = error_of([&] { sharded(input_of(1, 0), 0); });
    expect_words(caught, {rank.c_str(), "'stage1'", "clone()"});
    expect_words(error, {rank.c_str(), "ended with an error", "catch"});
    chain->way = [](std::vector<Stage>& s, Tensor t, int) { return s[2](s[0](t)); };
    sharded(input_of(1, 0), 0).backward();
    sharded.step();
  });
}

TEST(TorchAutograd, WhatWasFrozenWhenItWasShardedStaysSo) {
  spawn_ranks(2, [](Communicator& comm) {
    Chain chain([](std::vector<Stage>& s, Tensor x, int) { return s[1](s[0](x)); });
    chain->stages[1]->linear->weight.requires_grad_(false);
    auto sharded = fully_shard(chain, comm, by_stage());
    sharded(input_of(1, 0), 0).backward();
    sharded.step();
    chain->stages[1]->linear->weight.requires_grad_(true);
    const std::string rank = "rank " + std::to_string(comm.rank());
    expect_words(error_of([&] { sharded(input_of(1, 0), 0); }),
                 {rank.c_str(), "'stage1.linear.weight'", "'stage1'", "frozen", "before fully_shard"});
    chain->stages[1]->linear->weight.requires_grad_(false);
    sharded(input_of(1, 0), 0).backward();
    sharded.step();
  });
}

TEST(TorchAutograd, AFailureLeavesTheModuleItsValues) {
  spawn_ranks(3, [](Communicator& comm) {
    const ChainImpl::Way way = [](std::vector<Stage>& s, Tensor x, int) { return s[1](s[0](x)); };
    const std::string rank = "rank " + std::to_string(comm.rank());
    Chain chain(way);
    const ::torch::NoGradGuard no_grad;
    for (auto& p : chain->parameters()) p.add_(comm.rank());
    const Values before = values_of(chain);
    auto expect_untouched = [&](const char* when) {
      for (const auto& [name, value] : values_of(chain))
        EXPECT_TRUE(!value.is_meta() && ::torch::equal(value, before.at(name))) << name << " " << when;
    };
    Options o = by_stage();
    o.init = Init::kEqual;
    expect_words(error_of([&] { fully_shard(chain, comm, o); }), {rank.c_str(), "'scale'", "kFromRank0"});
    expect_untouched("after values that are not equal");

    // One rank cannot make a parameter.
    chain->stages[3]->linear->register_parameter("late", ::torch::zeros({3}, ::at::kMeta));
    for (const Init init : {Init::kFromRank0, Init::kEqual}) {
      o.init = init;
      o.fill = [&](const std::string& name, Tensor whole) {
        if (comm.rank() == 0) throw std::runtime_error("no file for " + name);
        whole.zero_();
      };
      const std::string error = error_of([&] { fully_shard(chain, comm, o); });
      if (comm.rank() == 0) expect_words(error, {"rank 0", "'stage3.linear.late'", "no file for", "options.fill"});
      else expect_words(error, {rank.c_str(), "rank 0", "options.fill"});
      for (const auto& [name, value] : before) {
        const Tensor now = chain->named_parameters()[name];
        EXPECT_TRUE(!now.is_meta() && ::torch::equal(now, value)) << name;
      }
    }
    o.init = Init::kFromRank0;
    o.fill = [](const std::string&, Tensor whole) { whole.zero_(); };
    auto sharded = fully_shard(chain, comm, o);
    const ::at::AutoGradMode grad(true);
    sharded(input_of(1, 0), 0).backward();
    sharded.step();
  });
}

}  // namespace
}  // namespace rondo::torch::testing
