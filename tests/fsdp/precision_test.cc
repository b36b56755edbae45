// labels: unit
// timeout: 120
// The error of mixed precision compared with fp64 sums of the same inputs: bfloat16 on the wire, added in float.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "rondo/fsdp/engine.h"
#include "support/exact_data.h"
#include "support/spawn.h"

namespace rondo::fsdp {
namespace {

using rondo::testing::spawn;
using rondo::testing::World;

float value(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + i * 0xbf58476d1ce4e5b9 + 1;
  x ^= x >> 30, x *= 0x94d049bb133111eb, x ^= x >> 27;
  return static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
}

uint16_t to_bfloat16(float f) {  // to the nearest, ties to even
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float from_bfloat16(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

// One unit of gradients that each rank computes in bfloat16: the owners' means against the fp64 sum of the inputs.
void check_reduction(int n, bool deterministic) {
  constexpr uint64_t kElems = 4001;
  spawn(World::kThreads, n, [&](Communicator& comm) {
    Model model;
    model.units = {{"unit", {{"w", {kElems}}}}};
    const auto plan = Plan::build(model, {.nranks = n, .param_dtype = Dtype::kBfloat16});
    ASSERT_TRUE(plan.ok());
    auto made =
        Engine::create(*plan, comm, {.optimizer = {.rule = Rule::kSgd, .lr = 1}, .deterministic = deterministic});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    Engine& e = **made;
    ASSERT_TRUE(e.init([](const Tensor&, uint64_t, uint64_t count, void* to) {
                   std::fill_n(static_cast<float*>(to), count, 0.0f);
                 }).ok());
    ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
    ASSERT_TRUE(e.begin(Act::kForward, 0).ok());
    ASSERT_TRUE(e.end(Act::kForward, 0).ok());
    ASSERT_TRUE(e.begin(Act::kBackward, 0).ok());
    auto* g = static_cast<uint16_t*>(e.grad(0, 0));
    for (uint64_t i = 0; i < kElems; ++i) g[i] = to_bfloat16(value(static_cast<uint64_t>(comm.rank()), i));
    ASSERT_TRUE(e.end(Act::kBackward, 0).ok());
    ASSERT_TRUE(e.end_pass().ok());
    double worst_added_in_bfloat16 = 0, worst = 0;
    for (const Part& p : e.parts())
      for (uint64_t i = 0; i < p.num_elems; ++i) {
        double sum = 0, absolute = 0;
        float rounded = 0;
        for (int r = 0; r < n; ++r) {
          const float x = from_bfloat16(to_bfloat16(value(static_cast<uint64_t>(r), p.first + i)));
          sum += static_cast<double>(x), absolute += std::fabs(static_cast<double>(x));
          rounded = from_bfloat16(to_bfloat16(rounded + x));
        }
        const double error = std::fabs(static_cast<double>(p.grad[i]) * n - sum);
        ASSERT_LE(error, n * 0x1p-24 * absolute + n * 0x1p-24 * std::fabs(sum)) << i;  // sums, and the mean's division
        worst = std::max(worst, error);
        worst_added_in_bfloat16 = std::max(worst_added_in_bfloat16, std::fabs(static_cast<double>(rounded) - sum));
      }
    if (n > 2) {
      EXPECT_LT(worst * n / 2, worst_added_in_bfloat16);
    }
  });
}

TEST(Precision, GradientsInBfloat16AreAddedInFloat) {
  for (const int n : {1, 2, 3, 4, 8})
    for (const bool deterministic : {false, true}) check_reduction(n, deterministic);
}

// bfloat16 in and out: the fp64 sum rounded once for 99 of 100 elements, and never off by more than one place.
TEST(Precision, Bfloat16OutIsRoundedOnce) {
  constexpr uint64_t kElems = 20000;
  for (const int n : {2, 3, 4, 8})
    spawn(World::kThreads, n, [&](Communicator& comm) {
      std::vector<uint16_t> in(kElems * static_cast<uint64_t>(n)), out(kElems);
      for (uint64_t i = 0; i < in.size(); ++i) in[i] = to_bfloat16(value(static_cast<uint64_t>(comm.rank()), i));
      TypeRow row{Dtype::kBfloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kBfloat16};
      CallOptions options;
      options.row = &row;
      options.promises = RONDO_PROMISE_RANK_ORDER;
      ASSERT_TRUE(comm.reduce_scatter(in.data(), out.data(), kElems, Dtype::kBfloat16, Op::kSum, &options).ok());
      uint64_t same = 0;
      for (uint64_t i = 0; i < kElems; ++i) {
        double sum = 0;
        for (int r = 0; r < n; ++r)
          sum += static_cast<double>(from_bfloat16(
              to_bfloat16(value(static_cast<uint64_t>(r), static_cast<uint64_t>(comm.rank()) * kElems + i))));
        const auto once = to_bfloat16(static_cast<float>(sum));
        same += out[i] == once;
        ASSERT_LE(std::abs(static_cast<int>(out[i]) - static_cast<int>(once)), 1) << i;
      }
      EXPECT_GE(same, kElems * 99 / 100) << n << " ranks";
    });
}

}  // namespace
}  // namespace rondo::fsdp
