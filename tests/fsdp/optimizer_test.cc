// Optimizers against the formulas of torch.optim in double, and equal bits however an array is cut.
#include "rondo/fsdp/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace rondo::fsdp {
namespace {

struct State {
  std::vector<float> p, s0, s1;
};
std::vector<float> gradients(size_t n, int step) {
  std::vector<float> g(n);
  for (size_t i = 0; i < n; ++i) g[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(step) * 13));
  return g;
}
State start(size_t n) {
  State s{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n)};
  for (size_t i = 0; i < n; ++i) s.p[i] = std::cos(static_cast<float>(i));
  return s;
}
// In pieces of this size.
void run(const OptimizerConfig& c, State& s, int step, size_t piece) {
  const std::vector<float> g = gradients(s.p.size(), step);
  for (size_t at = 0; at < s.p.size(); at += piece) {
    float* states[2] = {s.s0.data() + at, s.s1.data() + at};
    optimizer_step(c, step, 0.5f, std::min(piece, s.p.size() - at), s.p.data() + at, g.data() + at, states);
  }
}

// One element in double, by torch's documentation.
double by_the_book(const OptimizerConfig& c, double p, int steps, size_t i) {
  double a = 0, b = 0;
  for (int t = 1; t <= steps; ++t) {
    double g = 0.5 * std::sin(static_cast<float>(i * 7 + static_cast<size_t>(t) * 13));
    if (c.rule == Rule::kAdamW) p *= 1 - static_cast<double>(c.lr) * c.weight_decay;
    else g += c.weight_decay * p;
    switch (c.rule) {
      case Rule::kSgd:
        if (c.momentum != 0) {
          a = t == 1 ? g : c.momentum * a + (1 - static_cast<double>(c.dampening)) * g;
          g = c.nesterov ? g + c.momentum * a : a;
        }
        p -= c.lr * g;
        break;
      case Rule::kAdam:
      case Rule::kAdamW:
        a = c.beta1 * a + (1 - static_cast<double>(c.beta1)) * g;
        b = c.beta2 * b + (1 - static_cast<double>(c.beta2)) * g * g;
        p -= c.lr * (a / (1 - std::pow(c.beta1, t))) / (std::sqrt(b / (1 - std::pow(c.beta2, t))) + c.eps);
        break;
      case Rule::kAdadelta: {
        a = c.rho * a + (1 - static_cast<double>(c.rho)) * g * g;
        const double delta = std::sqrt(b + c.eps) / std::sqrt(a + c.eps) * g;
        b = c.rho * b + (1 - static_cast<double>(c.rho)) * delta * delta;
        p -= c.lr * delta;
        break;
      }
    }
  }
  return p;
}

std::vector<OptimizerConfig> configs() {
  return {{.rule = Rule::kSgd, .lr = 0.1f},
          {.rule = Rule::kSgd, .lr = 0.1f, .weight_decay = 0.1f, .momentum = 0.9f},
          {.rule = Rule::kSgd, .lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f},
          {.rule = Rule::kSgd, .lr = 0.1f, .momentum = 0.9f, .nesterov = true},
          {.rule = Rule::kAdam, .lr = 0.01f, .weight_decay = 0.1f},
          {.rule = Rule::kAdamW, .lr = 0.01f, .weight_decay = 0.1f},
          {.rule = Rule::kAdadelta, .lr = 1.0f, .weight_decay = 0.01f, .eps = 1e-6f}};
}

TEST(Optimizer, FollowsTheBook) {
  constexpr int kSteps = 5;
  for (const OptimizerConfig& c : configs()) {
    const State before = start(37);
    State s = before;
    for (int t = 1; t <= kSteps; ++t) run(c, s, t, s.p.size());
    for (size_t i = 0; i < s.p.size(); ++i)
      EXPECT_NEAR(s.p[i], by_the_book(c, before.p[i], kSteps, i), 2e-6) << static_cast<int>(c.rule) << " element " << i;
  }
}

TEST(Optimizer, BitsDoNotDependOnTheCut) {
  for (const OptimizerConfig& c : configs()) {
    State whole = start(1021);
    for (int t = 1; t <= 3; ++t) run(c, whole, t, whole.p.size());
    for (const size_t piece : {1, 3, 8, 17, 500}) {
      State s = start(1021);
      for (int t = 1; t <= 3; ++t) run(c, s, t, piece);
      EXPECT_EQ(std::memcmp(s.p.data(), whole.p.data(), s.p.size() * sizeof(float)), 0) << piece;
    }
  }
}

TEST(Optimizer, MistakesAreNamed) {
  for (const auto& [config, field] :
       std::vector<std::pair<OptimizerConfig, std::string>>{{{.lr = -1}, "lr"},
                                                            {{.weight_decay = -1}, "weight_decay"},
                                                            {{.beta1 = 1}, "beta1"},
                                                            {{.beta2 = -1}, "beta2"},
                                                            {{.rho = 2}, "rho"},
                                                            {{.eps = -1}, "eps"},
                                                            {{.rule = Rule::kSgd, .nesterov = true}, "nesterov"},
                                                            {{.lr = NAN}, "lr"}}) {
    const Status s = check_optimizer(config);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(s.message().find("optimizer." + field), std::string::npos) << s.to_string();
  }
  EXPECT_TRUE(check_optimizer({}).ok());
}

TEST(Optimizer, StatesHaveTorchsNames) {
  EXPECT_EQ(optimizer_states({.rule = Rule::kSgd}), 0);
  EXPECT_STREQ(optimizer_state_name({.rule = Rule::kAdamW}, 1), "exp_avg_sq");
  EXPECT_EQ(optimizer_state_name({.rule = Rule::kAdamW}, 2), nullptr);
}

}  // namespace
}  // namespace rondo::fsdp
