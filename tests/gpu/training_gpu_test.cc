// On a real device: the optimizer's kernels give the bits of the host's loops. Engines of sharded training with ranks
// on one device end with the bits of engines on the host, with the ranks' own parts on the device or in host memory.
// Each loads the other's checkpoint.
// labels: gpu
// timeout: 120
// separate
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <vector>

#include "device/driver/handles.h"
#include "gpu/gpu.h"
#include "rondo/fsdp/checkpoint.h"
#include "support/spawn.h"

namespace rondo::fsdp {
namespace {

using rondo::testing::full_or_quick;
using rondo::testing::gpu_config;
using rondo::testing::spawn_threads;

float value_of(uint64_t seed, uint64_t i) { return std::sin(static_cast<float>(seed * 31 + i * 7)); }

std::vector<OptimizerConfig> configs() {
  return {{.rule = Rule::kSgd, .lr = 0.1f, .weight_decay = 0.1f},
          {.rule = Rule::kSgd, .lr = 0.1f, .momentum = 0.9f, .nesterov = true},
          {.rule = Rule::kAdam, .lr = 0.01f, .weight_decay = 0.1f},
          {.rule = Rule::kAdamW, .lr = 0.01f, .weight_decay = 0.1f},
          {.rule = Rule::kAdadelta, .lr = 1.0f, .eps = 1e-6f}};
}

// Four consecutive arrays after a step and a norm.
std::vector<double> step_on(Device& d, const OptimizerConfig& config, uint64_t n, uint64_t shift) {
  const uint64_t room = n + 64;
  std::vector<float> host(4 * room);
  for (uint64_t i = 0; i < host.size(); ++i) host[i] = std::fabs(value_of(i / room, i % room));
  auto made = d.allocate(host.size() * sizeof(float));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  auto* const a = reinterpret_cast<float*>(*made) + shift;
  auto lanes = d.allocate(kNormLanes * sizeof(double));
  EXPECT_TRUE(lanes.ok());
  EXPECT_TRUE(d.write(*made, host.data(), host.size() * sizeof(float)).ok());
  for (int64_t t = 1; t <= 3; ++t)
    EXPECT_TRUE(d.step({config, t, 0.7f, n, a, a + room, {a + 2 * room, a + 3 * room - shift}}).ok());
  EXPECT_TRUE(d.add(n, a, a + room).ok());
  EXPECT_TRUE(d.scale(n, 0.3f, a + room).ok());
  EXPECT_TRUE(d.add_squares(n, a, reinterpret_cast<double*>(*lanes)).ok());
  EXPECT_TRUE(d.read(host.data(), *made, host.size() * sizeof(float)).ok());
  std::vector<double> all(kNormLanes);
  EXPECT_TRUE(d.read(all.data(), *lanes, kNormLanes * sizeof(double)).ok());
  all.insert(all.end(), host.begin(), host.end());
  d.free(*made);
  d.free(*lanes);
  return all;
}

TEST(TrainingGpuTest, KernelsGiveTheBitsOfTheHostsLoops) {
  RONDO_NEEDS_GPU();
  const auto gpu = cuda_device(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status().to_string();
  const auto host = host_device();
  const uint64_t large = full_or_quick(1 << 22, 1 << 14);
  for (const OptimizerConfig& config : configs())
    for (const uint64_t n : {uint64_t{1}, uint64_t{1009}, large, large + 3})
      for (const uint64_t shift : {0, 1}) {
        const auto expected = step_on(*host, config, n, shift), found = step_on(**gpu, config, n, shift);
        EXPECT_EQ(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(double)), 0)
            << "rule " << static_cast<int>(config.rule) << ", " << n << " elements, shift " << shift;
      }
}

Model model() {
  Model m;
  m.has_root = true;
  m.units.push_back({"root", {{"v", {1000, 33}}}});
  for (int i = 0; i < 4; ++i) m.units.push_back({"layer" + std::to_string(i), {{"w", {257, 129}}, {"b", {129}}}});
  return m;
}

// Gradients are multiples of parameters, made with the operations that every device has.
Status train(Engine& e, int step, Rank rank) {
  return e.run(e.plan().step(), [&](Act act, int u) -> Status {
    const UnitPlan& unit = e.plan().units()[static_cast<size_t>(u)];
    for (size_t t = 0; act == Act::kBackward && t < unit.tensors.size(); ++t) {
      const uint64_t n = unit.placed[t].num_elems;
      auto* const g = static_cast<float*>(e.grad(u, t));
      RONDO_TRY(e.device().copy(Line::kCompute, g, e.data(u, t), n * sizeof(float)));
      RONDO_TRY(e.device().scale(n, 0.1f * static_cast<float>(rank + 1) + static_cast<float>(step), g));
    }
    return {};
  });
}

struct Place {
  bool gpu = false, offload = false;
};

using Results = std::vector<std::vector<float>>;

Results run(int nranks, Strategy strategy, Place place, const std::string& load_from, const std::string& save_to) {
  Results results(static_cast<size_t>(nranks));
  rondo::testing::SpawnOptions options;
  if (place.gpu) options.config = gpu_config(nranks);
  spawn_threads(
      nranks,
      [&](Communicator& comm) {
        const auto plan = Plan::build(model(), {.nranks = nranks, .strategy = strategy, .offload = place.offload});
        ASSERT_TRUE(plan.ok());
        cuda::PrimaryContext context;
        cuda::OwnedStream stream;
        EngineOptions with{.optimizer = {.rule = Rule::kAdamW, .lr = 0.01f}, .deterministic = true, .clip_norm = 1};
        if (place.gpu) {
          context = std::move(*cuda::PrimaryContext::retain(0));
          ASSERT_EQ(cuda::driver()->context_set_current(context.get()), 0);
          stream = std::move(*cuda::OwnedStream::make());
          auto device = cuda_device(0, stream.get());
          ASSERT_TRUE(device.ok()) << device.status().to_string();
          with.device = *device;
        }
        auto made = Engine::create(*plan, comm, with);
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        Engine& e = **made;
        if (load_from.empty()) {
          ASSERT_TRUE(e.init([](const Tensor& tensor, uint64_t first, uint64_t n, void* to) {
                         for (uint64_t i = 0; i < n; ++i)
                           static_cast<float*>(to)[i] = value_of(tensor.shape.size(), first + i);
                       }).ok());
        } else {
          const auto loaded = load(e, load_from);
          ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
        }
        for (int step = 1; step <= 5; ++step) {
          const Status ran = train(e, step, comm.rank());
          ASSERT_TRUE(ran.ok()) << ran.to_string();
        }
        if (!save_to.empty()) {
          const Status saved = save(e, save_to);
          ASSERT_TRUE(saved.ok()) << saved.to_string();
        }
        ASSERT_TRUE(e.read_owned([&](const Tensor&, uint64_t, uint64_t n, const void* from) {
                       auto& mine = results[static_cast<size_t>(comm.rank())];
                       mine.insert(mine.end(), static_cast<const float*>(from), static_cast<const float*>(from) + n);
                     }).ok());
      },
      options);
  return results;
}

TEST(TrainingGpuTest, EnginesGiveTheBitsOfTheHost) {
  RONDO_NEEDS_GPU();
  for (int nranks = 1; nranks <= static_cast<int>(full_or_quick(4, 2)); nranks *= 2)
    for (const Strategy strategy : {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardAll}) {
      const Results expected = run(nranks, strategy, {}, "", "");
      for (const bool offload : {false, true})
        EXPECT_EQ(run(nranks, strategy, {true, offload}, "", ""), expected)
            << nranks << " ranks, strategy " << static_cast<int>(strategy) << (offload ? ", offload" : "");
    }
}

TEST(TrainingGpuTest, CheckpointsGoFromTheDeviceToTheHost) {
  RONDO_NEEDS_GPU();
  std::string folder = (std::filesystem::temp_directory_path() / "rondo_gpu_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const Results there = run(2, Strategy::kShardAll, {true, false}, "", folder + "/c");
  EXPECT_EQ(there, run(2, Strategy::kShardAll, {}, "", ""));
  const Results expected = run(3, Strategy::kShardAll, {}, folder + "/c", "");
  for (const bool offload : {false, true})
    EXPECT_EQ(run(3, Strategy::kShardAll, {true, offload}, folder + "/c", ""), expected);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rondo::fsdp
