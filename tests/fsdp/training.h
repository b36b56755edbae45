// Trains a TinyNet on the engine and compares it with one process on the same data.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "device/driver/driver.h"
#include "fsdp/tiny_net.h"
#include "rondo/fsdp/engine.h"
#include "support/spawn.h"

namespace rondo::fsdp::testing {

using rondo::testing::spawn;
using rondo::testing::World;

using Parameters = std::map<std::string, std::vector<float>>;  // by unit and tensor

inline std::string key(const std::string& unit, const std::string& tensor) { return unit + "." + tensor; }

inline uint64_t seed_of(const std::string& name) {
  uint64_t h = 7;
  for (const char c : name) h = h * 131 + static_cast<uint8_t>(c);
  return h;
}

using States = std::map<std::string, std::vector<std::vector<float>>>;  // two optimizer states, by the same key

/// First values of all parameters, and zeros.
inline void make_start(const TinyNet& net, Parameters* params, States* states) {
  for (const Unit& u : net.model().units)
    for (const Tensor& t : u.tensors) {
      uint64_t n = 1;
      for (const uint64_t d : t.shape) n *= d;
      auto& p = (*params)[key(u.name, t.name)];
      for (uint64_t i = 0; i < n; ++i) p.push_back(value_of(seed_of(u.name), seed_of(t.name), i));
      (*states)[key(u.name, t.name)].assign(2, std::vector<float>(n));
    }
}

/// Training in one process: gradients of every rank's micro-batches, added in order.
inline Parameters train_alone(const TinyNet& net, const OptimizerConfig& optimizer, int nranks, int micro_batches,
                              int steps) {
  Parameters params;
  States states;
  make_start(net, &params, &states);
  for (int step = 1; step <= steps; ++step) {
    std::vector<Parameters> of_micro_batch;
    for (int m = 0; m < micro_batches; ++m) {
      Parameters sum;
      for (int r = 0; r < nranks; ++r) {
        Parameters g;
        for (const auto& [name, p] : params) g[name].assign(p.size(), 0.0f);
        Pass pass(net, static_cast<uint64_t>((step * 100 + m) * 100 + r));
        for (int l = 0; l < net.layers; ++l) {
          const std::string unit = "layer" + std::to_string(l);
          if (net.skipped(r, l)) pass.skip_layer(l);
          else pass.forward_layer(l, params[key(unit, "w")].data(), params[key(unit, "b")].data());
        }
        pass.start_backward(net.root ? params["head.v"].data() : nullptr);
        for (int l = net.layers - 1; l >= 0; --l) {
          const std::string unit = "layer" + std::to_string(l);
          if (!net.skipped(r, l))
            pass.backward_layer(l, params[key(unit, "w")].data(), g[key(unit, "w")].data(), g[key(unit, "b")].data());
        }
        if (net.root) pass.backward_head(g["head.v"].data());
        for (auto& [name, v] : g)
          if (r == 0) sum[name] = v;
          else
            for (size_t i = 0; i < v.size(); ++i) sum[name][i] += v[i];
      }
      of_micro_batch.push_back(std::move(sum));
    }
    for (auto& [name, p] : params) {
      std::vector<float> g(p.size());
      for (int m = 0; m < micro_batches; ++m)
        for (size_t i = 0; i < g.size(); ++i) {
          const float mean = of_micro_batch[static_cast<size_t>(m)][name][i] / static_cast<float>(nranks);
          g[i] = m == 0 ? mean : g[i] + mean;
        }
      auto& s = states[name];
      float* both[2] = {s[0].data(), s[1].data()};
      optimizer_step(optimizer, step, 1, p.size(), p.data(), g.data(), both);
    }
  }
  return params;
}

/// Runs one pass of one rank: train_step with the plan's list, or a variant.
using Step = std::function<Status(Engine& engine, const TinyNet& net, int step, int micro_batches, int rank)>;

struct Setting {
  TinyNet net;
  Options plan;
  // Adam would hide the last bits of gradients, because it divides by them.
  OptimizerConfig optimizer = {.rule = Rule::kSgd, .lr = 1, .momentum = 0.9f};
  int micro_batches = 1, steps = 3;
  std::string communicator = {};  // its settings
  Step by = {};                   // default: train_step
  float clip_norm = 0;
  bool as_planned = true;  // the log equals the plan's
  rondo::Memory memory = rondo::Memory::kHost;
  /// A rank's device, if it is not the host.
  std::function<std::shared_ptr<Device>(Communicator& comm)> device = {};
  rondo::TransportDecorator decorate = {};  // for every rank's transport; threads
};

inline void fill(Engine& engine) {
  std::map<const Tensor*, uint64_t> unit_of;
  for (const UnitPlan& u : engine.plan().units())
    for (const Tensor& t : u.tensors) unit_of[&t] = seed_of(u.name);
  const Status s = engine.init([&](const Tensor& t, uint64_t first, uint64_t n, void* to) {
    for (uint64_t i = 0; i < n; ++i) static_cast<float*>(to)[i] = value_of(unit_of.at(&t), seed_of(t.name), first + i);
  });
  EXPECT_TRUE(s.ok()) << s.to_string();
}

/// Yields for a random time.
inline void dawdle(std::mt19937& random) {
  for (uint32_t n = random() % 64; n > 0; --n) std::this_thread::yield();
}

/// Runs work where the engine's rank computes: at once, or in the compute line of a fake device.
inline void compute(Engine& engine, std::function<void()> work) {
  if (engine.device().memory() == rondo::Memory::kHost) return work();
  const auto run = [](void* boxed) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(boxed));
    (*mine)();
  };
  const auto stream = static_cast<cuda::Stream>(engine.device().stream(Line::kCompute));
  auto boxed = std::make_unique<std::function<void()>>(std::move(work));
  EXPECT_EQ(cuda::driver()->launch_host_function(stream, run, boxed.release()), cuda::kSuccess);
}

/// Runs work where the rank's own parts are changed.
inline void change_parts(Engine& engine, std::function<void()> work) {
  if (engine.owner().memory() == rondo::Memory::kHost) work();
  else compute(engine, std::move(work));
}

/// A Pass whose parts run by compute().
class PassOn {
 public:
  PassOn(Engine& engine, const TinyNet& net, uint64_t data)
      : engine_(engine), pass_(std::make_shared<Pass>(net, data)) {}
  void forward_layer(int layer, const float* w, const float* b) {
    compute(engine_, [pass = pass_, layer, w, b] { pass->forward_layer(layer, w, b); });
  }
  void skip_layer(int layer) {
    compute(engine_, [pass = pass_, layer] { pass->skip_layer(layer); });
  }
  void start_backward(const float* v) {
    compute(engine_, [pass = pass_, v] { pass->start_backward(v); });
  }
  void backward_layer(int layer, const float* w, float* dw, float* db) {
    compute(engine_, [pass = pass_, layer, w, dw, db] { pass->backward_layer(layer, w, dw, db); });
  }
  void backward_head(float* dv) {
    compute(engine_, [pass = pass_, dv] { pass->backward_head(dv); });
  }

 private:
  Engine& engine_;
  const std::shared_ptr<Pass> pass_;
};

inline Status train_step(Engine& engine, const TinyNet& net, int step, int micro_batches, int rank) {
  for (int m = 0; m < micro_batches; ++m) {
    PassOn pass(engine, net, static_cast<uint64_t>((step * 100 + m) * 100 + rank));
    auto at = [](void* p) { return static_cast<float*>(p); };
    const int last = net.first() + net.layers - 1;
    RONDO_TRY(engine.run(engine.plan().step(m + 1 == micro_batches), [&](Act act, int u) -> Status {
      const int layer = u - net.first();
      if (act == Act::kForward && layer >= 0) pass.forward_layer(layer, at(engine.data(u, 0)), at(engine.data(u, 1)));
      if (act != Act::kBackward) return {};
      if (layer < 0) pass.backward_head(at(engine.grad(0, 0)));
      if (u == last) pass.start_backward(net.root ? at(engine.data(0, 0)) : nullptr);
      if (layer >= 0) pass.backward_layer(layer, at(engine.data(u, 0)), at(engine.grad(u, 0)), at(engine.grad(u, 1)));
      return {};
    }));
  }
  return {};
}

/// Trains and compares each rank's own parts with a single process: bit for bit, or within `tolerance`.
inline void expect_same_training(World world, const Setting& s, float tolerance = 0) {
  const Parameters alone = train_alone(s.net, s.optimizer, s.plan.nranks, s.micro_batches, s.steps);
  rondo::testing::SpawnOptions options;
  options.config.settings = s.communicator;
  options.config.memory = s.memory;
  options.decorate = s.decorate;
  spawn(
      world, s.plan.nranks,
      [&](Communicator& comm) {
        const auto plan = Plan::build(s.net.model(), s.plan);
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        auto made = Engine::create(*plan, comm,
                                   {.optimizer = s.optimizer,
                                    .deterministic = true,
                                    .clip_norm = s.clip_norm,
                                    .device = s.device ? s.device(comm) : nullptr});
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        Engine& engine = **made;
        const bool two_states = optimizer_states(s.optimizer) == 2;  // the plan's assumption
        if (two_states) {
          EXPECT_EQ(engine.owned_bytes(), plan->memory(comm.rank()).total());
        }
        fill(engine);
        for (int step = 1; step <= s.steps; ++step) {
          engine.clear_log();
          const Status ran = (s.by ? s.by : train_step)(engine, s.net, step, s.micro_batches, comm.rank());
          ASSERT_TRUE(ran.ok()) << ran.to_string();
          if (!s.as_planned) continue;
          std::vector<Communication> expected;
          for (int m = 0; m < s.micro_batches; ++m)
            for (const Communication& c : plan->communications(comm.rank(), m + 1 == s.micro_batches))
              expected.push_back(c);
          ASSERT_EQ(engine.log().size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            const Communication &a = engine.log()[i], &b = expected[i];
            EXPECT_TRUE(a.act == b.act && a.unit == b.unit && a.segment == b.segment &&
                        a.payload_bytes == b.payload_bytes && a.whole_bytes == b.whole_bytes &&
                        std::strcmp(a.collective, b.collective) == 0)
                << "communication " << i << " of step " << step;
          }
        }
        std::map<const Tensor*, std::string> unit_of;
        for (const UnitPlan& u : engine.plan().units())
          for (const Tensor& t : u.tensors) unit_of[&t] = u.name;
        const Status read = engine.read_owned([&](const Tensor& t, uint64_t first, uint64_t n, const void* from) {
          const std::vector<float>& p = alone.at(key(unit_of.at(&t), t.name));
          const auto* mine = static_cast<const float*>(from);
          const bool same = std::memcmp(mine, p.data() + first, n * sizeof(float)) == 0;
          EXPECT_TRUE(same || tolerance > 0) << unit_of.at(&t) << "." << t.name << " from " << first;
          for (uint64_t i = 0; i < n && tolerance > 0; ++i) ASSERT_NEAR(mine[i], p[first + i], tolerance) << t.name;
        });
        EXPECT_TRUE(read.ok());
      },
      options);
}

}  // namespace rondo::fsdp::testing
