// Engines on the host and on fake devices: the same bits in bfloat16, with micro-batches, clipping and a caller's
// optimizer, and the same norm.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include <bit>

#include "fsdp/fake_device.h"
#include "fsdp/hooks.h"

namespace rondo::fsdp::testing {
namespace {

float bfloat16_at(const void* p, uint64_t i) {
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(p)[i]) << 16);
}
uint16_t to_bfloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct Case {
  Options plan;
  double clip_norm = 0;
  int micro_batches = 1;
  bool own_optimizer = false;
  bool frozen = false;  // a unit, and a tensor of another
};

// Gradients computed from parameters, rank and step.
Status train(Engine& e, const Case& c, int step, int rank) {
  for (int m = 0; m < c.micro_batches; ++m) {
    const bool last = m + 1 == c.micro_batches;
    RONDO_TRY(e.begin_pass(last ? PassKind::kTrain : PassKind::kAccumulate));
    for (const Act act : {Act::kForward, Act::kBackward})
      for (size_t k = 0; k < e.plan().units().size(); ++k) {
        const UnitPlan& unit = e.plan().units()[act == Act::kForward ? k : e.plan().units().size() - 1 - k];
        const auto u = static_cast<int>(&unit - e.plan().units().data());
        RONDO_TRY(e.begin(act, u));
        for (size_t t = 0; act == Act::kBackward && t < unit.tensors.size(); ++t) {
          if (!unit.tensors[t].trainable) {
            const uint64_t bytes = unit.placed[t].num_elems;
            compute(e, [from = static_cast<const char*>(e.data(u, t)), bytes] {
              std::this_thread::sleep_for(std::chrono::milliseconds(2));
              EXPECT_NE(std::count(from, from + bytes, 0), static_cast<ptrdiff_t>(bytes));  // it is used to the end
            });
            continue;
          }
          const auto seed = static_cast<uint64_t>((step * 10 + m) * 10 + rank);
          const uint64_t n = unit.placed[t].num_elems;
          const bool narrow = unit.segments[unit.placed[t].segment].param == Dtype::kBfloat16;
          compute(e, [narrow, n, seed, from = e.data(u, t), to = e.grad(u, t)] {
            for (uint64_t i = 0; i < n; ++i) {
              const float param = narrow ? bfloat16_at(from, i) : static_cast<const float*>(from)[i];
              const float g = value_of(seed, 1, i) + 0.25f * param;
              if (narrow) static_cast<uint16_t*>(to)[i] = to_bfloat16(g);
              else static_cast<float*>(to)[i] += g;
            }
          });
        }
        RONDO_TRY(e.end(act, u));
      }
    RONDO_TRY(e.end_pass());
  }
  if (!c.own_optimizer) return e.step();
  return e.step([&]() -> Status {
    change_parts(e, [parts = e.parts()] {
      for (const Part& p : parts)
        for (uint64_t i = 0; i < p.num_elems; ++i) static_cast<float*>(p.master)[i] -= 0.1f * p.grad[i];
    });
    return {};
  });
}

using Results = std::vector<std::vector<double>>;  // by rank: its own parameters, and norms

Results run(const Case& c, bool on_devices, Delays delays = {}) {
  Results results(static_cast<size_t>(c.plan.nranks));
  rondo::testing::SpawnOptions options;
  if (on_devices) options.config = rondo::testing::device_config("device_blocks = -3");
  spawn(
      World::kThreads, c.plan.nranks,
      [&](Communicator& comm) {
        const TinyNet net{.layers = 3, .dim = 37};
        Options o = c.plan;
        o.offload = o.offload && on_devices;
        Model model = net.model();
        for (Tensor& t : model.units[0].tensors) t.trainable = !c.frozen;  // no step comes before its gather
        model.units[1].tensors[1].trainable = !c.frozen;
        const auto plan = Plan::build(model, o);
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        EngineOptions engine{.optimizer = {.rule = Rule::kAdamW, .lr = 0.01f, .weight_decay = 0.1f},
                             .deterministic = true};
        engine.clip_norm = c.clip_norm;
        if (on_devices) engine.device = std::make_shared<FakeDevice>(comm, delays);
        auto made = Engine::create(*plan, comm, engine);
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        Engine& e = **made;
        fill(e);
        auto& mine = results[static_cast<size_t>(comm.rank())];
        for (int step = 1; step <= 3; ++step) {
          const Status ran = train(e, c, step, comm.rank());
          ASSERT_TRUE(ran.ok()) << ran.to_string();
        }
        ASSERT_TRUE(e.read_owned([&](const Tensor&, uint64_t, uint64_t n, const void* from) {
                       const auto* values = static_cast<const float*>(from);
                       mine.insert(mine.end(), values, values + n);
                     }).ok());
        // A pass's gradients are available for a norm before the optimizer runs.
        ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
        for (int u = 3; u >= 0; --u) {
          ASSERT_TRUE(e.begin(Act::kBackward, u).ok());
          if (e.grad(u, 0) == nullptr) {
            ASSERT_TRUE(e.end(Act::kBackward, u).ok());
            continue;
          }
          compute(e, [g = e.grad(u, 0), narrow = o.param_dtype.has_value(), u] {
            if (narrow) static_cast<uint16_t*>(g)[1] = to_bfloat16(static_cast<float>(u) + 0.3f);
            else static_cast<float*>(g)[1] = static_cast<float>(u) + 0.3f;
          });
          ASSERT_TRUE(e.end(Act::kBackward, u).ok());
        }
        ASSERT_TRUE(e.end_pass().ok());
        const auto norm = e.grad_norm();
        ASSERT_TRUE(norm.ok()) << norm.status().to_string();
        EXPECT_GT(*norm, 0.3);
        mine.push_back(*norm);
        ASSERT_TRUE(e.cancel_pass().ok());
      },
      options);
  return results;
}

void expect_same_bits(Case c, Delays delays = {}) {
  c.plan.offload = false;
  const Results on_host = run(c, false);
  for (const bool offload : {false, true}) {
    c.plan.offload = offload;
    rondo::testing::EmulatedCuda cuda(rondo::testing::FakeMachine::uniform(c.plan.nranks));
    const Results on_devices = run(c, true, delays);
    for (size_t r = 0; r < on_host.size(); ++r) {
      ASSERT_EQ(on_host[r].size(), on_devices[r].size());
      EXPECT_FALSE(on_host[r].empty());
      EXPECT_EQ(std::memcmp(on_host[r].data(), on_devices[r].data(), on_host[r].size() * sizeof(double)), 0)
          << "rank " << r << (offload ? ", offload" : "");
    }
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

TEST(FsdpDeviceBits, Bfloat16) {
  for (const Strategy strategy : kStrategies)
    for (const int micro_batches : {1, 2}) {
      Case c;
      c.plan = {.nranks = 2, .strategy = strategy, .param_dtype = Dtype::kBfloat16};
      c.micro_batches = micro_batches;
      expect_same_bits(c);
    }
}
TEST(FsdpDeviceBits, Bfloat16OfOneRankAndReducedInFloat) {
  Case c;
  c.plan = {.nranks = 1, .param_dtype = Dtype::kBfloat16};
  expect_same_bits(c);
  c.plan = {.nranks = 3, .param_dtype = Dtype::kBfloat16, .reduce_dtype = Dtype::kFloat32};
  expect_same_bits(c, {300, 300});
}
TEST(FsdpDeviceBits, Clipping) {
  for (const Strategy strategy : {Strategy::kShardOptimizer, Strategy::kShardAll})
    for (const bool own_optimizer : {false, true}) {
      Case c;
      c.plan = {.nranks = 2, .strategy = strategy};
      c.clip_norm = 0.5;
      c.own_optimizer = own_optimizer;
      expect_same_bits(c, {300, 300});
    }
}
TEST(FsdpDeviceBits, FrozenUnitsAndTensors) {
  for (const Strategy strategy : kStrategies) {
    Case c;
    c.plan = {.nranks = 2, .strategy = strategy};
    if (strategy == Strategy::kReplicate) c.plan.param_dtype = Dtype::kBfloat16;
    c.frozen = true;
    expect_same_bits(c, {500, 0});
  }
}
TEST(FsdpDeviceBits, Hybrid) {
  Case c;
  c.plan = {.nranks = 4, .shard_ranks = 2, .param_dtype = Dtype::kBfloat16};
  c.micro_batches = 2;
  c.clip_norm = 0.5;
  expect_same_bits(c);
}

}  // namespace
}  // namespace rondo::fsdp::testing
