// The optimizer's kernels on host threads: same bits as the host's loops, for every rule, any number of elements,
// aligned and not, and any grid.
// labels: unit tsan
// links: host_kernels
#include "fsdp/optimizer_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "fsdp/host_training.h"
#include "support/host_kernels/host_kernels.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

using fsdp::OptimizerConfig;
using fsdp::Rule;

constexpr uint64_t kElems[] = {0, 1, 3, 4, 5, 63, 1009, 4096};
constexpr uint64_t kRoom = 4096 + 8;

struct Arrays {
  explicit Arrays(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* a : {&p, &g, &s0, &s1})
      for (uint64_t i = 0; i < kRoom; ++i) a->push_back(normal(random));
    for (auto* a : {&s0, &s1})
      for (float& x : *a) x *= x;
  }
  std::vector<float> p, g, s0, s1;
};

// The first address in `a` that is `shift` elements after a multiple of 16 bytes.
float* at(std::vector<float>& a, uint32_t shift) {
  const auto begin = reinterpret_cast<uintptr_t>(a.data());
  return reinterpret_cast<float*>((begin + 15) / 16 * 16) + shift;
}

void run(std::string_view kernel, const OptimizerArgs& args, uint32_t grid, uint32_t threads) {
  const HostKernel run = find_host_kernel(kernel);
  ASSERT_NE(run, nullptr) << kernel;
  run(&args, grid, threads);
}

struct Variant {
  const char* kernel;
  OptimizerConfig config;
};
std::vector<Variant> variants() {
  return {{"rondo_optimizer_sgd", {.rule = Rule::kSgd, .lr = 0.1f, .weight_decay = 0.1f}},
          {"rondo_optimizer_momentum", {.rule = Rule::kSgd, .lr = 0.1f, .momentum = 0.9f, .dampening = 0.3f}},
          {"rondo_optimizer_momentum", {.rule = Rule::kSgd, .lr = 0.1f, .momentum = 0.9f, .nesterov = true}},
          {"rondo_optimizer_adam", {.rule = Rule::kAdam, .lr = 0.01f, .weight_decay = 0.1f}},
          {"rondo_optimizer_adam", {.rule = Rule::kAdamW, .lr = 0.01f, .weight_decay = 0.1f}},
          {"rondo_optimizer_adadelta", {.rule = Rule::kAdadelta, .lr = 1.0f, .eps = 1e-6f}}};
}

TEST(OptimizerKernelsTest, BitsOfTheHostsLoops) {
  uint32_t turn = 0;
  for (const Variant& v : variants())
    for (const int64_t step : {1, 7})
      for (const uint64_t n : kElems)
        for (const uint32_t shift : {0u, 1u, 3u}) {
          if (kSanitized && ++turn % 5 != 0) continue;
          for (const auto& [grid, threads] : {std::pair{1u, 1u}, {1u, 4u}, {3u, 2u}}) {
            const auto seed = static_cast<uint32_t>(n + shift + grid);
            Arrays on_host(seed), on_device(seed);
            float* states[2] = {at(on_host.s0, shift), at(on_host.s1, 0)};
            fsdp::optimizer_step(v.config, step, 0.75f, n, at(on_host.p, shift), at(on_host.g, 0), states);
            OptimizerArgs args{at(on_device.p, shift),
                               at(on_device.g, 0),
                               {at(on_device.s0, shift), at(on_device.s1, 0)},
                               nullptr,
                               n,
                               rule_constants(v.config, step, 0.75f)};
            run(v.kernel, args, grid, threads);
            auto same = [&](std::vector<float>& a, std::vector<float>& b) {
              return std::memcmp(at(a, 0), at(b, 0), (kRoom - 4) * sizeof(float)) == 0;
            };
            ASSERT_TRUE(same(on_host.p, on_device.p) && same(on_host.s0, on_device.s0) &&
                        same(on_host.s1, on_device.s1) && same(on_host.g, on_device.g))
                << v.kernel << ", " << n << " elements, shift " << shift << ", step " << step;
          }
        }
}

TEST(OptimizerKernelsTest, AddAndScale) {
  for (const uint64_t n : kElems)
    for (const uint32_t shift : {0u, 2u}) {
      Arrays on_host(5), on_device(5);
      HostTraining host;
      ASSERT_TRUE(host.add(n, at(on_host.p, shift), at(on_host.g, 0)).ok());
      ASSERT_TRUE(host.scale(n, 0.3f, at(on_host.s0, shift)).ok());
      run("rondo_floats_add", {at(on_device.p, shift), at(on_device.g, 0), {}, nullptr, n, {}}, 2, 2);
      OptimizerArgs args{at(on_device.s0, shift), at(on_device.s0, shift), {}, nullptr, n, {}};
      args.constants.scale = 0.3f;
      run("rondo_floats_scale", args, 2, 2);
      ASSERT_EQ(std::memcmp(at(on_host.p, 0), at(on_device.p, 0), (kRoom - 4) * sizeof(float)), 0) << n;
      ASSERT_EQ(std::memcmp(at(on_host.s0, 0), at(on_device.s0, 0), (kRoom - 4) * sizeof(float)), 0) << n;
    }
}

// Twice into the same lanes, as for two tensors; longer than the number of lanes.
TEST(OptimizerKernelsTest, SquaresAddUpInTheSameLanes) {
  std::vector<float> x(2 * kSquareLanes + 77);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  std::vector<double> on_host(kSquareLanes), one_grid(kSquareLanes), other_grid(kSquareLanes);
  for (const uint64_t n : {x.size(), size_t{1009}}) {
    ASSERT_TRUE(HostTraining().add_squares(n, x.data(), on_host.data()).ok());
    run("rondo_add_squares", {nullptr, x.data(), {}, one_grid.data(), n, {}}, 1, 3);
    run("rondo_add_squares", {nullptr, x.data(), {}, other_grid.data(), n, {}}, 2, 4);
  }
  EXPECT_EQ(std::memcmp(on_host.data(), one_grid.data(), kSquareLanes * sizeof(double)), 0);
  EXPECT_EQ(std::memcmp(on_host.data(), other_grid.data(), kSquareLanes * sizeof(double)), 0);
  double sum = 0, expected = 0;
  for (const double lane : on_host) sum += lane;
  for (uint64_t i = 0; i < x.size(); ++i)
    expected += static_cast<double>(x[i]) * static_cast<double>(x[i]) * (i < 1009 ? 2 : 1);
  EXPECT_NEAR(sum, expected, 1e-9 * expected);
}

}  // namespace
}  // namespace rondo::testing
