// What the adapter makes of models: units, ties, buffers; units that are frozen, unused, repeated, called twice or
// outside of a pass; exceptions; evaluation; free-form code; processes.
#include "models.h"

namespace rondo::torch::testing {
namespace {

using fsdp::PassKind;
using fsdp::Strategy;

Options by_block(const fsdp::OptimizerConfig& optimizer = momentum()) {
  return {.policy = wrap_types<BlockImpl>(), .engine = {.optimizer = optimizer, .deterministic = true}};
}

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* w : words) EXPECT_NE(text.find(w), std::string::npos) << "'" << w << "' is not in: " << text;
}

// 100 linear layers: in five units of twenty no more than two units are whole at once, in one unit all are.
struct StageImpl : nn::Module {
  StageImpl() {
    for (int i = 0; i < 20; ++i) layers.push_back(register_module(std::to_string(i), nn::Linear(4, 4)));
  }
  Tensor forward(Tensor x) {
    probe();
    for (nn::Linear& l : layers) x = l(x);
    if (x.requires_grad()) x.register_hook([this](const Tensor&) { probe(); });
    return x;
  }
  std::vector<nn::Linear> layers;
  std::function<void()> probe = [] {};
};
RONDO_TORCH_MODULE(Stage);

TEST(TorchUnits, HundredLayersInFiveUnitsNeedTwoUnitsOfMemory) {
  for (const bool one : {false, true})
    spawn_ranks(2, [one](Communicator& comm) {
      nn::Sequential model;
      std::vector<Stage> stages(5, Stage(nullptr));
      for (Stage& s : stages) model->push_back(s = Stage());
      fill(*model);
      auto sharded = fully_shard(model, comm, {.policy = one ? one_unit() : wrap_types<StageImpl>()});
      const auto num_units = static_cast<int>(sharded.plan().units().size());
      ASSERT_EQ(num_units, one ? 1 : 5);
      uint64_t peak_bytes = 0;
      int probed = 0;
      for (Stage& s : stages)
        s->probe = [&] {
          uint64_t bytes = 0;
          for (int u = 0; u < num_units; ++u)
            if (sharded.engine().is_here(u)) bytes += sharded.plan().units()[static_cast<size_t>(u)].data_bytes;
          peak_bytes = std::max(peak_bytes, bytes);
          ++probed;
        };
      for (int step = 0; step < 2; ++step) {
        sharded(random({3, 4}, 5)).sum().backward();
        sharded.step();
      }
      EXPECT_EQ(probed, 2 * 2 * 5);
      const fsdp::Memory memory = sharded.plan().memory(comm.rank());
      EXPECT_LE(peak_bytes, memory.data_buffers);
      EXPECT_EQ(memory.data_buffers, one ? 100u * 20 * 4 : 2u * 20 * 20 * 4);
      EXPECT_EQ(sharded.engine().owned_bytes(), memory.total());
    });
}

// As T5: one embedding for encoder, decoder and head. Encoder and decoder are units around blocks.
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
struct SharedEmbeddingImpl : nn::Module {
  SharedEmbeddingImpl() {
    shared = register_module("shared", nn::Embedding(11, 6));
    encoder = register_module("encoder", Stack(shared));
    decoder = register_module("decoder", Stack(shared));
    fill(*this);
  }
  Tensor forward(Tensor ids) {
    const Tensor memory = encoder(ids, ::torch::zeros({1}));
    const Tensor logits = ::torch::matmul(decoder(ids, memory), shared->weight.t());
    return ::torch::nll_loss(::torch::log_softmax(logits, -1).flatten(0, 1), ids.flatten());
  }
  nn::Embedding shared{nullptr};
  Stack encoder{nullptr}, decoder{nullptr};
};
RONDO_TORCH_MODULE(SharedEmbedding);

Tensor ids_of(int step, int rank) { return ((::torch::arange(10) * (step + 3) + rank * 5) % 11).view({2, 5}); }

TEST(TorchUnits, SharedEmbeddingLiesInTheUnitAroundItsUsers) {
  ::at::set_num_threads(1);
  const Values alone = train_alone(SharedEmbedding(), momentum(), 2, 1, 3,
                                   [](auto& model, int step, int, int r) { return model->forward(ids_of(step, r)); });
  for (const Policy& p : {wrap_types<StackImpl>(), wrap_types<StackImpl, BlockImpl>()})
    spawn_ranks(2, [&](Communicator& comm) {
      SharedEmbedding model;
      auto sharded =
          fully_shard(model, comm, {.policy = p, .engine = {.optimizer = momentum(), .deterministic = true}});
      expect_words(sharded.describe(),
                   {"shared.weight: unit 0 ''", "encoder.shared.weight: unit 0 '', tied",
                    "decoder.shared.weight: unit 0 '', tied", "encoder.norm.weight: unit 1 'encoder'"});
      for (int step = 1; step <= 3; ++step) {
        sharded(ids_of(step, comm.rank())).backward();
        sharded.step();
      }
      expect_values(sharded, alone);
    });
}

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

TEST(TorchUnits, OutsideOfCallsParametersHaveShapesAndNoMemory) {
  spawn_ranks(2, [](Communicator& comm) {
    Net net(2, 5);
    auto sharded = fully_shard(net, comm, by_block());
    EXPECT_EQ(net->blocks[0]->up->weight.sizes(), ::torch::IntArrayRef({8, 5}));
    EXPECT_TRUE(net->blocks[0]->up->weight.is_meta());
    expect_words(error_of([&] { net->blocks[0](random({1, 5}, 1)); }), {"'block0'", "outside of a pass"});
    expect_words(error_of([&] { fully_shard(net, comm, by_block()); }), {"sharded already"});
    // Not by way of its holder.
    EXPECT_NE(error_of([&] { sharded.run([&] { return net->blocks[0]->forward(random({1, 5}, 1)); }); }), "");
    const Data d = data_of(5, 1, 0, comm.rank());
    sharded(d.x, d.y).backward();  // none of that has done harm
    sharded.step();
    for (const Tensor& p : net->parameters()) EXPECT_TRUE(p.is_meta() && !p.grad().defined());
  });
}

// Blocks in turn, the first of them twice, also side by side; one that is called without a graph too, and one that is
// never called; frozen parameters and a
// block of nothing else.
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
      const ::torch::NoGradGuard no_grad;  // a call that backward does not repeat, though it could
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

// On one rank backward does not reach the unit in the middle: it contributes zeros, in its place among the others.
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

TEST(TorchUnits, ExceptionsLeaveItUsable) {
  ::at::set_num_threads(1);
  const Values alone = train_alone(Net(3, 5), momentum(), 2, 1, 2, [](Net& net, int step, int, int r) {
    const Data d = data_of(5, step, 0, r);
    return net->forward(d.x, d.y);
  });
  spawn_ranks(2, [&](Communicator& comm) {
    Net net(3, 5);
    auto sharded = fully_shard(net, comm, by_block());
    for (int step = 1; step <= 2; ++step) {
      const Data d = data_of(5, step, 0, comm.rank());
      net->blocks[1]->probe = [] { throw std::runtime_error("in forward"); };
      EXPECT_EQ(error_of([&] { sharded(d.x, d.y); }), "in forward");
      net->blocks[1]->probe = nullptr;
      Tensor failing = sharded(d.x, d.y);
      failing.register_hook([](const Tensor&) -> void { throw std::runtime_error("in backward"); });
      expect_words(error_of([&] { failing.backward(); }), {"in backward"});
      sharded(d.x, d.y);  // whose backward never comes
      const Tensor loss = sharded(d.x, d.y);
      loss.backward({}, true);
      expect_words(error_of([&] { loss.backward(); }), {"has ended"});
      sharded.step();
    }
    expect_values(sharded, alone);
  });
}

// Its memory is another unit's as soon as the call is over.
struct QueriesImpl : nn::Module {
  QueriesImpl() { queries = register_parameter("queries", ::torch::ones({4, 3})); }
  Tensor forward(Tensor x) { return clones ? queries.unsqueeze(0).clone() : queries.unsqueeze(0).expand({2, -1, -1}); }
  Tensor queries;
  bool clones = false;
};
RONDO_TORCH_MODULE(Queries);
struct AskingImpl : nn::Module {
  AskingImpl() { queries = register_module("queries", Queries()); }
  Tensor forward(Tensor x) { return (queries(x) * x).sum(); }
  Queries queries{nullptr};
};
RONDO_TORCH_MODULE(Asking);

TEST(TorchUnits, ViewsOfParametersMayNotLeaveTheirUnit) {
  spawn_ranks(2, [](Communicator& comm) {
    Asking model;
    auto sharded = fully_shard(model, comm, {.policy = wrap_types<QueriesImpl>()});
    const Tensor x = ::torch::ones({1, 4, 3});
    expect_words(error_of([&] { sharded(x); }), {"unit 'queries'", "view", "clone()"});
    model->queries->clones = true;
    Tensor loss = sharded(x);
    EXPECT_EQ(loss.item<float>(), 12);
    loss.backward();
    sharded.step();
  });
}

TEST(TorchUnits, GradientsAreSteppedOrForgottenBeforeTheNextPass) {
  for (const Strategy strategy : {Strategy::kReplicate, Strategy::kShardAll})
    spawn_ranks(2, [strategy](Communicator& comm) {
      Asking model;
      model->queries->clones = true;
      Options options{.policy = wrap_types<QueriesImpl>()};
      options.plan.strategy = strategy;
      options.engine.optimizer = {.rule = fsdp::Rule::kSgd, .lr = 1};
      auto sharded = fully_shard(model, comm, options);
      const Tensor x = ::torch::ones({1, 4, 3});
      Tensor loss = sharded(x);
      loss.backward();
      expect_words(error_of([&] { sharded(x); }), {"step", "kAccumulate"});
      sharded.forget_gradients();
      loss = sharded(x);  // dropped in the middle, with its result still there
      sharded.forget_gradients();
      loss = sharded(x);
      EXPECT_EQ(loss.item<float>(), 12);
      loss.backward();
      sharded.step();
      const ::torch::NoGradGuard no_grad;
      EXPECT_EQ(sharded(x).item<float>(), 0);  // once: 1 - 1 in each of 12
    });
}

TEST(TorchOptim, AnExceptionOfTheOptimizersLeavesItUsable) {
  spawn_ranks(2, [](Communicator& comm) {
    Asking model;
    model->queries->clones = true;
    auto sharded = fully_shard(model, comm, {.engine = {.optimizer = {.rule = fsdp::Rule::kSgd}}});
    ::torch::optim::LBFGS needs_a_closure(sharded.shards(), 1.0);
    const Tensor x = ::torch::ones({1, 4, 3});
    for (int i = 0; i < 2; ++i) {
      sharded(x).backward();
      EXPECT_NE(error_of([&] { sharded.step(needs_a_closure); }), "");
    }
    sharded(x).backward();
    sharded.step();
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
    expect_words(error_of([&] { fully_shard(model, comm); }), {"'w'", "'turned'", "laid out otherwise"});
  });
}

TEST(TorchUnits, EvaluationGathersAndReducesNothing) {
  ::at::set_num_threads(1);
  Net alone(3, 5);
  const Data d = data_of(5, 1, 0, 0);
  const float expected = alone->forward(d.x, d.y).item<float>();
  spawn_ranks(2, [&](Communicator& comm) {
    Net net(3, 5);
    auto sharded = fully_shard(net, comm, by_block());
    const ::torch::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) {
      sharded.engine().clear_log();
      EXPECT_EQ(sharded(d.x, d.y).item<float>(), expected);
      expect_log(sharded, {PassKind::kForwardOnly}, comm.rank());
    }
  });
}

TEST(TorchUnits, TwoForwardsBeforeOneBackwardAreOnePass) {
  ::at::set_num_threads(1);
  auto loss = [](auto& model, const Data& a, const Data& b) { return model(a.x, a.y) + 2 * model(b.x, b.y); };
  const Values alone = train_alone(Net(3, 5), momentum(), 2, 1, 2, [&](Net& net, int step, int, int r) {
    return loss(net, data_of(5, step, 0, r), data_of(5, step, 1, r));
  });
  spawn_ranks(2, [&](Communicator& comm) {
    Net net(3, 5);
    auto sharded = fully_shard(net, comm, by_block());
    for (int step = 1; step <= 2; ++step) {
      loss(sharded, data_of(5, step, 0, comm.rank()), data_of(5, step, 1, comm.rank())).backward();
      sharded.step();
    }
    expect_values(sharded, alone);
  });
}

TEST(TorchRecompute, HasTheSameRandomNumbersAndNeedsNoGradientOfItsInput) {
  ::torch::manual_seed(3);
  const Tensor weight = ::torch::ones({100}).requires_grad_(), input = ::torch::ones({100});
  const Tensor out = recompute([&](const Tensor& x) { return ::torch::dropout(x * weight, 0.5, true); }, input);
  const Tensor after = ::torch::rand({1});
  out.sum().backward();
  EXPECT_TRUE(::torch::equal(weight.grad(), out.detach()));  // 0 or 2, where it was
  ::torch::manual_seed(3);
  (void)::torch::dropout(input, 0.5, true);
  EXPECT_TRUE(::torch::equal(::torch::rand({1}), after));
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

TEST(TorchInit, FromAFunctionForParametersOnTheMetaDevice) {
  spawn_ranks(3, [](Communicator& comm) {
    Net net(2, 5), made(2, 5);
    forget_values(*net);
    expect_words(error_of([&] { fully_shard(net, comm, by_block()); }), {"'scale'", "meta", "options.fill"});
    int64_t largest = 0;
    Options o = by_block();
    o.fill = [&](const std::string& name, Tensor whole) {
      EXPECT_EQ(comm.rank(), 0);
      largest = std::max(largest, whole.numel());
      const ::torch::NoGradGuard no_grad;
      whole.copy_(made->named_parameters()[name]);
    };
    auto sharded = fully_shard(net, comm, o);
    EXPECT_EQ(largest, comm.rank() == 0 ? 40 : 0);
    expect_values(sharded, values_of(made));
    const Data d = data_of(5, 1, 0, comm.rank());
    sharded(d.x, d.y).backward();
    sharded.step();
  });
}

TEST(TorchInit, RanksThatShouldBeEqualAndAreNotAreNamed) {
  spawn_ranks(3, [](Communicator& comm) {
    Net net(2, 5), same(2, 5);
    if (comm.rank() == 2) {
      const ::torch::NoGradGuard no_grad;
      net->blocks[1]->down->bias[3] = 7;
    }
    Options o = by_block();
    o.init = Init::kEqual;
    expect_words(error_of([&] { fully_shard(net, comm, o); }), {"'block1.down.bias'", "rank"});
    auto sharded = fully_shard(same, comm, o);
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

TEST(TorchProcesses, TrainAsThreadsDo) {
  const Values alone = train_alone(Net(3, 7), momentum(), 3, 1, 2, [](Net& net, int step, int, int r) {
    const Data d = data_of(7, step, 0, r);
    return net->forward(d.x, d.y);
  });
  spawn(World::kProcesses, 3, [&](Communicator& comm) {
    Net net(3, 7);
    auto sharded = fully_shard(net, comm, by_block());
    for (int step = 1; step <= 2; ++step) {
      const Data d = data_of(7, step, 0, comm.rank());
      sharded(d.x, d.y).backward();
      sharded.step();
    }
    expect_values(sharded, alone);
  });
}

}  // namespace
}  // namespace rondo::torch::testing

// Processes are forked before this one has made a communicator.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
