// Units and their contents: ties, free-form code, types; units that are frozen, unused, repeated, or called outside of
// a pass.
#include "models.h"

namespace rondo::torch::testing {
namespace {

using fsdp::Strategy;

// With an embedding that others use too.
struct StackImpl : nn::Module {
  explicit StackImpl(nn::Embedding shared) : shared(register_module("shared", shared)) {
    block = register_module("block", Block(6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
  }
  Tensor forward(Tensor ids, Tensor memory) { return norm(block(shared(ids) + memory)); }
  nn::Embedding shared;
  Block block{nullptr};
  nn::LayerNorm norm{nullptr};
};
RONDO_TORCH_MODULE(Stack);

TEST(TorchUnits, TheOuterUnitOfTiesMayBeRegisteredLater) {
  struct LateImpl : nn::Module {
    LateImpl() {
      nn::Embedding shared(11, 6);
      register_module("stack", Stack(shared));
      register_module("shared", shared);
    }
    Tensor forward(Tensor x) { return x; }
  };
  spawn_ranks(1, [](Communicator& comm) {
    auto sharded = fully_shard(std::make_shared<LateImpl>(), comm, {.policy = wrap_types<StackImpl>()});
    expect_words(sharded.describe(), {"stack.shared.weight: unit 0 ''", "\nshared.weight: unit 0 '', tied"});
  });
}

TEST(TorchUnits, TiesAcrossUnitsAreNamed) {
  spawn_ranks(1, [](Communicator& comm) {
    nn::Embedding shared(11, 6);
    struct TwoImpl : nn::Module {
      explicit TwoImpl(nn::Embedding shared) {
        register_module("left", Stack(shared));
        register_module("right", Stack(shared));
      }
      Tensor forward(Tensor x) { return x; }
    };
    const auto two = std::make_shared<TwoImpl>(shared);
    expect_words(error_of([&] { fully_shard(two, comm, {.policy = wrap_types<StackImpl>()}); }),
                 {"'left.shared.weight'", "'right.shared.weight'", "'left'", "'right'", "tied"});
    Net net(2, 3);
    expect_words(error_of([&] { fully_shard(net, comm, {.policy = wrap_paths({"block0", "block7"})}); }), {"'block7'"});
  });
}

TEST(TorchUnits, MemoryThatIsSharedOtherwiseIsNoTie) {
  spawn_ranks(1, [](Communicator& comm) {
    struct BothImpl : nn::Module {
      BothImpl() {
        w = register_parameter("w", ::torch::ones({3, 3}));
        turned = register_parameter("turned", w.detach().t());
      }
      Tensor forward(Tensor x) { return (x * (w + turned)).sum(); }
      Tensor w, turned;
    };
    const auto model = std::make_shared<BothImpl>();
    expect_words(error_of([&] { fully_shard(model, comm); }), {"'w'", "'turned'", "different layouts"});
  });
}

TEST(TorchUnits, OutsideOfCallsParametersHaveShapesAndNoMemory) {
  spawn_ranks(2, [](Communicator& comm) {
    Net net(2, 5);
    auto sharded = fully_shard(net, comm, by_block());
    EXPECT_EQ(net->blocks[0]->up->weight.sizes(), ::torch::IntArrayRef({8, 5}));
    EXPECT_TRUE(net->blocks[0]->up->weight.is_meta());
    expect_words(error_of([&] { net->blocks[0](random({1, 5}, 1)); }), {"'block0'", "outside of a pass"});
    expect_words(error_of([&] { fully_shard(net, comm, by_block()); }), {"already sharded"});
    // Not through its holder.
    EXPECT_NE(error_of([&] { sharded.run([&] { return net->blocks[0]->forward(random({1, 5}, 1)); }); }), "");
    const Data d = data_of(5, 1, 0, comm.rank());
    sharded(d.x, d.y).backward();  // it still works
    sharded.step();
    for (const Tensor& p : net->parameters()) EXPECT_TRUE(p.is_meta() && !p.grad().defined());
  });
}

// Blocks in turn, the first of them twice, also next to each other; one that is also called without a graph, and one
// that is never called; frozen parameters, and a block that has only those.
struct OddImpl : nn::Module {
  OddImpl() {
    for (int i = 0; i < 5; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(4)));
    fill(*this);
    for (auto& p : blocks[2]->parameters()) p.requires_grad_(false);
    blocks[1]->up->weight.requires_grad_(false);
  }
  Tensor forward(Tensor x) {
    x = blocks[0](blocks[0](x));
    x = blocks[2](blocks[1](x));
    Tensor target;
    {
      const ::torch::NoGradGuard no_grad;  // a call that backward does not repeat, although it could
      target = blocks[3](x * 2);
    }
    return (blocks[3](x) + blocks[0](x) - target).square().mean();
  }
  std::vector<Block> blocks;
};
RONDO_TORCH_MODULE(Odd);

TEST(TorchUnits, FrozenUnusedAndRepeatedUnits) {
  ::at::set_num_threads(1);
  for (const int n : {1, 3}) {
    const Values alone = train_alone(Odd(), momentum(), n, 1, 3, [](auto& model, int step, int, int r) {
      return model->forward(data_of(4, step, 0, r).x);
    });
    for (const Strategy s : {Strategy::kReplicate, Strategy::kShardGradients, Strategy::kShardAll})
      spawn_ranks(n, [&](Communicator& comm) {
        Odd model;
        Options o = by_block();
        o.plan.strategy = s;
        auto sharded = fully_shard(model, comm, o);
        for (int step = 1; step <= 3; ++step) {
          sharded.engine().clear_log();
          sharded(data_of(4, step, 0, comm.rank()).x).backward();
          sharded.step();
          std::map<int, int> reductions;
          for (const auto& c : sharded.engine().log()) reductions[c.unit] += c.act == fsdp::Act::kReduce;
          for (const int u : {0, 1, 3, 4}) EXPECT_EQ(reductions[u], n > 1 ? 1 : 0) << "unit " << u;
          EXPECT_EQ(reductions[2], 0);
        }
        expect_values(sharded, alone);
      });
  }
}

// On one rank backward does not reach the middle unit: it contributes zeros at its position.
struct StepImpl : nn::Module {
  StepImpl() { linear = register_module("linear", nn::Linear(4, 4)); }
  Tensor forward(Tensor x) { return linear(x); }
  nn::Linear linear{nullptr};
};
RONDO_TORCH_MODULE(Step);
struct LadderImpl : nn::Module {
  LadderImpl() {
    for (int i = 0; i < 4; ++i) steps.push_back(register_module(std::to_string(i), Step()));
  }
  Tensor forward(Tensor x, bool cut) {
    x = steps[1](steps[0](x));
    const Tensor y = steps[2](x);
    return steps[3](x + (cut ? y.detach() : y)).pow(2).mean();
  }
  std::vector<Step> steps;
};
RONDO_TORCH_MODULE(Ladder);

TEST(TorchUnits, WhatBackwardDoesNotReachOnOneRankContributesZeros) {
  ::at::set_num_threads(1);
  auto fresh = [] {
    Ladder model;
    fill(*model);
    return model;
  };
  const Values alone = train_alone(fresh(), momentum(), 2, 1, 3, [](auto& model, int step, int, int r) {
    return model->forward(data_of(4, step, 0, r).x, r == 0);
  });
  for (const Strategy s : {Strategy::kReplicate, Strategy::kShardGradients, Strategy::kShardAll})
    spawn_ranks(2, [&](Communicator& comm) {
      Ladder model = fresh();
      Options o{.policy = wrap_types<StepImpl>(), .engine = {.optimizer = momentum(), .deterministic = true}};
      o.plan.strategy = s;
      auto sharded = fully_shard(model, comm, o);
      for (int step = 1; step <= 3; ++step) {
        sharded(data_of(4, step, 0, comm.rank()).x, comm.rank() == 0).backward();
        sharded.step();
        EXPECT_EQ(sharded.engine().log().size(), sharded.plan().communications(comm.rank()).size());
      }
      expect_values(sharded, alone);
    });
}

TEST(TorchUnits, FreeFormCode) {
  ::at::set_num_threads(1);
  struct Line {
    Tensor w = random({5, 5}, 1).requires_grad_(), b = random({5}, 2).requires_grad_();
  };
  auto start = [](Line& a, Line& b) { b.w = (b.w.detach() * 2).requires_grad_(); };
  auto apply = [](const Line& l, const Tensor& x) { return ::torch::tanh(::torch::matmul(x, l.w) + l.b); };
  Line one, two;
  start(one, two);
  const Data d = data_of(5, 1, 0, 0);
  apply(two, apply(one, d.x)).sum().backward();
  spawn_ranks(2, [&](Communicator& comm) {
    Line a, b;
    start(a, b);
    auto first = wrap_unit("first", [&](const Tensor& x) { return apply(a, x); }, {{"w", a.w}, {"b", a.b}});
    auto second = wrap_unit("second", [&](const Tensor& x) { return apply(b, x); }, {{"w", b.w}, {"b", b.b}});
    Training training =
        shard_units({first, second}, comm, {.engine = {.optimizer = {.rule = fsdp::Rule::kSgd, .lr = 1}}});
    training.run([&] { return second(first(d.x)).sum(); }).backward();
    training.step();
    expect_values(training,
                  {{"first.w", one.w - one.w.grad()},
                   {"first.b", one.b - one.b.grad()},
                   {"second.w", two.w - two.w.grad()},
                   {"second.b", two.b - two.b.grad()}},
                  1e-6);
  });
}

TEST(TorchUnits, BfloatParametersAndFloatMasters) {
  spawn_ranks(2, [](Communicator& comm) {
    Net net(2, 6);
    Options o = by_block(momentum(0.01f));
    o.plan.param_dtype = Dtype::kBfloat16;
    auto sharded = fully_shard(net, comm, o);
    EXPECT_EQ(net->scale.scalar_type(), ::torch::kBFloat16);
    double first = 0, last = 0;
    for (int step = 0; step < 10; ++step) {
      const Data d = data_of(6, 1, 0, comm.rank());
      const Tensor loss = sharded(d.x.to(::torch::kBFloat16), d.y.to(::torch::kBFloat16));
      (step == 0 ? first : last) = loss.item<double>();
      loss.backward();
      sharded.step();
    }
    EXPECT_LT(last, first);
  });
}

}  // namespace
}  // namespace rondo::torch::testing
