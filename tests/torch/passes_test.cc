// Passes with complications: exceptions, views that leave a unit, dropped gradients, evaluation, several forwards,
// recomputation; first values; processes.
#include "models.h"

namespace rondo::torch::testing {
namespace {

using fsdp::PassKind;
using fsdp::Strategy;

TEST(TorchPasses, ExceptionsLeaveItUsable) {
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
      sharded(d.x, d.y);  // its backward never comes
      const Tensor loss = sharded(d.x, d.y);
      loss.backward({}, true);
      expect_words(error_of([&] { loss.backward(); }), {"has ended"});
      sharded.step();
    }
    expect_values(sharded, alone);
  });
}

// Another unit uses its memory as soon as the call is over.
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

TEST(TorchPasses, ViewsOfParametersMayNotLeaveTheirUnit) {
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

TEST(TorchPasses, GradientsAreSteppedOrForgottenBeforeTheNextPass) {
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
      loss = sharded(x);  // dropped in the middle, while its result exists
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

TEST(TorchPasses, EvaluationGathersAndReducesNothing) {
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

TEST(TorchPasses, TwoForwardsBeforeOneBackwardAreOnePass) {
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
  EXPECT_TRUE(::torch::equal(weight.grad(), out.detach()));  // 0 or 2
  ::torch::manual_seed(3);
  (void)::torch::dropout(input, 0.5, true);
  EXPECT_TRUE(::torch::equal(::torch::rand({1}), after));
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
