// The model of examples/04_plain_model: its gradients against finite differences, and its training by the engine
// against one process that adds the ranks' gradients in order, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "04_plain_model/bfloat16.h"
#include "04_plain_model/product.h"
#include "04_plain_model/trainer.h"
#include "support/spawn.h"

namespace plain {
namespace {

using rondo::Communicator;
using rondo::testing::spawn;
using rondo::testing::World;
namespace fsdp = rondo::fsdp;

constexpr Shape kTiny = {.vocabulary = 7, .length = 5, .width = 6, .heads = 2, .layers = 2, .batch = 2};

MicroBatch tiny_batch(uint64_t number) {
  Text text;
  for (int i = 0; i < 97; ++i) text.ids.push_back(i * i % 7);
  return cut(text, number, kTiny.batch, kTiny.length);
}

// All tensors of a model, whole: unit, tensor, element. Tied ones share their partner's memory.
struct Whole {
  fsdp::Model model;
  std::vector<std::vector<std::vector<float>>> values;

  explicit Whole(const fsdp::Model& m) : model(m) {
    for (const fsdp::Unit& u : model.units) {
      values.emplace_back();
      for (const fsdp::Tensor& t : u.tensors) {
        const uint64_t n = std::accumulate(t.shape.begin(), t.shape.end(), uint64_t{1}, std::multiplies<>());
        values.back().emplace_back(t.tied_to.empty() ? n : 0, 0.0f);
      }
    }
  }
  float* at(size_t u, size_t t) {
    const auto& tensors = model.units[u].tensors;
    for (size_t other = 0; !tensors[t].tied_to.empty() && other < tensors.size(); ++other)
      if (tensors[other].name == tensors[t].tied_to) return values[u][other].data();
    return values[u][t].data();
  }
  template <class T>
  std::vector<T> pointers(int unit) {
    std::vector<T> p;
    for (size_t t = 0; t < values[static_cast<size_t>(unit)].size(); ++t) p.push_back(at(static_cast<size_t>(unit), t));
    return p;
  }
};

double forward(Transformer& net, Whole& p, const MicroBatch& m) {
  net.start(m.tokens, m.targets);
  for (int u = 0; u <= static_cast<int>(kTiny.layers); ++u) net.forward(u, p.pointers<const float*>(u));
  net.begin_backward(p.pointers<const float*>(0), 1);
  return net.loss();
}

Whole gradients(Transformer& net, Whole& p, const MicroBatch& m) {
  forward(net, p, m);
  Whole g(p.model);
  for (int u = static_cast<int>(kTiny.layers); u >= 0; --u)
    net.backward(u, p.pointers<const float*>(u), g.pointers<float*>(u));
  return g;
}

// Any sizes: rows and columns that are not multiples of a block, transposed, an empty product.
TEST(PlainProduct, IsThatOfTheDefinitionWhateverTheSizes) {
  for (const size_t m : {1u, 3u, 4u, 9u})
    for (const size_t n : {1u, 7u, 8u, 17u})
      for (const size_t k : {0u, 1u, 5u}) {
        std::vector<float> a(m * k), b(k * n), c(m * (n + 2), 1.0f);
        for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 5) - 2;
        for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7) - 3;
        add_product(Matrix(a.data(), k, m, m).transposed(), Matrix(b.data(), n, k, k == 0 ? 1 : k).transposed(),
                    c.data(), n + 2);
        for (size_t i = 0; i < m; ++i)
          for (size_t j = 0; j < n + 2; ++j) {
            float sum = 1;
            for (size_t e = 0; e < k && j < n; ++e) sum += a[e * m + i] * b[j * k + e];
            ASSERT_EQ(c[i * (n + 2) + j], sum) << m << " x " << k << " x " << n << " at " << i << ", " << j;
          }
      }
}

TEST(PlainModel, GradientsAreThoseOfFiniteDifferences) {
  Transformer net(kTiny);
  Whole p(net.model());
  for (size_t u = 0; u < p.values.size(); ++u)
    for (size_t t = 0; t < p.values[u].size(); ++t)
      for (size_t i = 0; i < p.values[u][t].size(); ++i) {  // large enough that every path matters
        const fsdp::Tensor& tensor = p.model.units[u].tensors[t];
        p.values[u][t][i] = tensor.shape.size() == 1 ? 0.5f + 0.1f * static_cast<float>(i % 3)  // gains, biases
                                                     : 6 * Transformer::initial_value(tensor, i);
      }
  const MicroBatch m = tiny_batch(3);
  Whole g = gradients(net, p, m);
  const float step = 1e-2f;
  for (size_t u = 0; u < p.values.size(); ++u)
    for (size_t t = 0; t < p.values[u].size(); ++t) {
      const std::string name = p.model.units[u].tensors[t].name;
      float largest = 0;
      for (size_t i = 0; i < p.values[u][t].size(); ++i) {
        float& x = p.values[u][t][i];
        const float before = x;
        x = before + step;
        const double above = forward(net, p, m);
        x = before - step;
        const double below = forward(net, p, m);
        x = before;
        const double slope = (above - below) / (2 * static_cast<double>(step));
        ASSERT_NEAR(g.values[u][t][i], slope, 5e-4 + 0.01 * std::fabs(slope)) << name << "[" << i << "]";
        largest = std::max(largest, std::fabs(g.values[u][t][i]));
      }
      EXPECT_TRUE(p.values[u][t].empty() || largest > 5e-3f) << name << " is not tried: its gradients are near zero";
    }
}

// The expected training: gradients of all micro-batches of a step, in order, divided by their number.
Whole train_alone(const fsdp::OptimizerConfig& optimizer, int nranks, int steps) {
  Transformer net(kTiny);
  Whole p(net.model()), momentum(net.model());
  for (size_t u = 0; u < p.values.size(); ++u)
    for (size_t t = 0; t < p.values[u].size(); ++t)
      for (size_t i = 0; i < p.values[u][t].size(); ++i)
        p.values[u][t][i] = Transformer::initial_value(p.model.units[u].tensors[t], i);
  for (int step = 0; step < steps; ++step) {
    Whole sum(p.model);
    for (int r = 0; r < nranks; ++r) {
      const Whole g = gradients(net, p, tiny_batch(static_cast<uint64_t>(step * nranks + r)));
      for (size_t u = 0; u < g.values.size(); ++u)
        for (size_t t = 0; t < g.values[u].size(); ++t)
          for (size_t i = 0; i < g.values[u][t].size(); ++i) sum.values[u][t][i] += g.values[u][t][i];
    }
    for (size_t u = 0; u < p.values.size(); ++u)
      for (size_t t = 0; t < p.values[u].size(); ++t) {
        for (float& x : sum.values[u][t]) x /= static_cast<float>(nranks);
        float* states[2] = {momentum.values[u][t].data(), nullptr};
        fsdp::optimizer_step(optimizer, step + 1, 1, p.values[u][t].size(), p.values[u][t].data(),
                             sum.values[u][t].data(), states);
      }
  }
  return p;
}

TEST(PlainModel, RanksHaveTheBitsOfOneProcess) {
  constexpr int kSteps = 3;
  // Adam would hide the last bits of gradients, because it divides by them.
  const fsdp::OptimizerConfig optimizer = {.rule = fsdp::Rule::kSgd, .lr = 0.5f, .momentum = 0.9f};
  for (const int nranks : {1, 2, 3, 4}) {
    const Whole alone = train_alone(optimizer, nranks, kSteps);
    std::map<std::string, const std::vector<float>*> expected;
    for (size_t u = 0; u < alone.values.size(); ++u)
      for (size_t t = 0; t < alone.values[u].size(); ++t)
        expected[alone.model.units[u].tensors[t].name] = &alone.values[u][t];
    for (const fsdp::Strategy strategy : {fsdp::Strategy::kReplicate, fsdp::Strategy::kShardAll})
      spawn(World::kThreads, nranks, [&](Communicator& comm) {
        Transformer net(kTiny);
        const auto plan =
            fsdp::Plan::build(net.model(), {.nranks = nranks, .strategy = strategy, .optimizer_bytes = 4});
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        auto engine = fsdp::Engine::create(*plan, comm, {.optimizer = optimizer, .deterministic = true});
        ASSERT_TRUE(engine.ok()) << engine.status().to_string();
        Trainer trainer(**engine, comm, net);
        ASSERT_TRUE(trainer.init().ok());
        for (int step = 0; step < kSteps; ++step) {
          const rondo::Status s = trainer.step({tiny_batch(static_cast<uint64_t>(step * nranks + comm.rank()))});
          ASSERT_TRUE(s.ok()) << s.to_string();
        }
        size_t compared = 0;
        const rondo::Status read =
            (*engine)->read_owned([&](const fsdp::Tensor& t, uint64_t first, uint64_t n, const void* from) {
              EXPECT_EQ(std::memcmp(from, expected.at(t.name)->data() + first, n * sizeof(float)), 0) << t.name;
              compared += n;
            });
        EXPECT_TRUE(read.ok());
        EXPECT_GT(compared, 0u);
      });
  }
}

TEST(PlainBfloat16, RoundsToTheNearestAndTiesToEven) {
  for (const auto& [value, rounded] : {std::pair{1.0f, 1.0f},
                                       {1.00390625f, 1.0f},
                                       {1.01171875f, 1.015625f},
                                       {1.004f, 1.0078125f},
                                       {-1.01171875f, -1.015625f},
                                       {0.0f, 0.0f}})
    EXPECT_EQ(widened(narrowed(value)), rounded) << value;
}

TEST(PlainText, IsCutAsItsNumberSaysAndMissedAloud) {
  const MicroBatch a = tiny_batch(4), b = tiny_batch(4), c = tiny_batch(5);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens, c.tokens);
  for (size_t i = 0; i + 1 < a.tokens.size(); ++i)
    if ((i + 1) % kTiny.length != 0) {
      EXPECT_EQ(a.targets[i], a.tokens[i + 1]) << i;
    }
  const auto missing = Text::load("/nowhere/at/all", 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().to_string().find("--text"), std::string::npos);
  const auto little = Text::load("/usr/share/common-licenses/BSD", 1u << 20);
  ASSERT_FALSE(little.ok());
}

}  // namespace
}  // namespace plain
