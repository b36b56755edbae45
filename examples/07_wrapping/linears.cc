// A hundred linear layers, wrapped in several ways. The number of units decides how many layers are whole at once and
// how many communications there are. The values stay the same.
#include <torch/nn/modules.h>

#include <algorithm>

#include "models.h"
#include "one_process.h"
#include "ranks.h"

namespace {

constexpr int64_t kWidth = 32, kBatch = 16;
constexpr int kStages = 5, kLayers = 20, kSteps = 3;
constexpr uint64_t kLayerBytes = (kWidth + 1) * kWidth * sizeof(float);
const rondo::fsdp::OptimizerConfig kMomentum{.rule = rondo::fsdp::Rule::kSgd, .lr = 0.05f, .momentum = 0.9f};

using Linear = rondo::torch::Holder<torch::nn::LinearImpl>;

// x: batch x width, as all below. The skip connection lets gradients reach the first of a hundred layers.
struct StageImpl : torch::nn::Module {
  StageImpl() {
    for (int i = 0; i < kLayers; ++i) layers.push_back(register_module(std::to_string(i), Linear(kWidth, kWidth)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Linear& layer : layers) {
      x = x + layer(x) / 8;
      if (!probe) continue;
      probe();
      if (x.requires_grad()) x.register_hook([this](const torch::Tensor&) { probe(); });
    }
    return x;
  }
  std::vector<Linear> layers;
  std::function<void()> probe;
};
RONDO_TORCH_MODULE(Stage);

struct HundredImpl : torch::nn::Module {
  HundredImpl() {
    for (int i = 0; i < kStages; ++i) stages.push_back(register_module("stage" + std::to_string(i), Stage()));
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& y) {
    for (Stage& stage : stages) x = stage(x);
    return torch::mse_loss(x, y);
  }
  std::vector<Stage> stages;
};
TORCH_MODULE(Hundred);

struct Way {
  const char* name;
  rondo::torch::Policy policy;
  int prefetch;
  size_t units;
  uint64_t whole, in_buffers;  // layers that are whole during computation, and those including prefetch
};

std::vector<Way> ways() {
  return {{"one_unit()", rondo::torch::one_unit(), 1, 1, 100, 100},
          {"min_params(20000)", rondo::torch::min_params(20000), 1, 5, 20, 40},
          {"min_params(20000), no prefetch", rondo::torch::min_params(20000), 0, 5, 20, 20},
          {"min_params(1000)", rondo::torch::min_params(1000), 1, 100, 1, 2}};
}

torch::Tensor draw(int step, int rank, int what) {
  const auto seed = static_cast<uint64_t>(step * 64 + rank * 2 + what);
  return torch::randn({kBatch, kWidth}, at::detail::createCPUGenerator(seed));
}

// The largest number of layers whose parameters are whole during computation.
uint64_t layers_here(const rondo::torch::Training& training, const rondo::fsdp::Engine& engine) {
  uint64_t bytes = 0;
  for (size_t u = 0; u < training.plan().units().size(); ++u)
    if (engine.is_here(static_cast<int>(u))) bytes += training.plan().units()[u].data_bytes;
  return bytes / kLayerBytes;
}

void train(rondo::Communicator& comm, const Way& way, const OneProcess& alone) {
  rondo::torch::Options options{.policy = way.policy, .engine = {.optimizer = kMomentum, .deterministic = true}};
  options.plan.forward_prefetch = options.plan.backward_prefetch = way.prefetch;
  Hundred model;
  fill(*model);
  auto sharded = rondo::torch::fully_shard(model, comm, options);
  uint64_t most = 0;
  for (Stage& stage : model->stages)
    stage->probe = [&] { most = std::max(most, layers_here(sharded, sharded.engine())); };
  for (int step = 1; step <= kSteps; ++step) {
    sharded.engine().clear_log();
    sharded(draw(step, comm.rank(), 0), draw(step, comm.rank(), 1)).backward();
    sharded.step();
  }
  const rondo::fsdp::Memory memory = sharded.plan().memory(comm.rank());
  size_t gathers = 0, reductions = 0;
  uint64_t payload_bytes = 0;
  for (const auto& c : sharded.engine().log()) {
    (c.act == rondo::fsdp::Act::kGather ? gathers : reductions) += 1;
    payload_bytes += c.payload_bytes;
  }
  if (comm.rank() == 0)
    std::printf("  %-30s %5zu %5llu %7llu %8llu %7zu %7zu %8llu\n", way.name, sharded.plan().units().size(),
                static_cast<unsigned long long>(most), static_cast<unsigned long long>(memory.data_buffers),
                static_cast<unsigned long long>(memory.total()), gathers, reductions,
                static_cast<unsigned long long>(payload_bytes));
  alone.compare(sharded, 0);
  const std::string by = way.name;
  expect(sharded.plan().units().size() == way.units, by + " makes " + std::to_string(way.units) + " units");
  expect(most == way.whole, by + " has " + std::to_string(way.whole) + " layers whole at once");
  expect(memory.data_buffers == way.in_buffers * kLayerBytes,
         by + " has buffers for " + std::to_string(way.in_buffers) + " layers");
  expect(sharded.engine().owned_bytes() == memory.total(), "the engine has what the plan says");
  expect(sharded.engine().log().size() == sharded.plan().communications(comm.rank()).size(),
         "what was communicated is the plan's list");
}

}  // namespace

bool run_linears(int nranks) {
  std::printf("linears: 100 layers of %lld x %lld, %llu B each; of a rank and a step\n", static_cast<long long>(kWidth),
              static_cast<long long>(kWidth), static_cast<unsigned long long>(kLayerBytes));
  std::printf("  %-30s %5s %5s %7s %8s %7s %7s %8s\n", "policy", "units", "whole", "buffers", "memory", "gathers",
              "reduct.", "payload");
  Hundred model;
  fill(*model);
  OneProcess alone(*model, nranks);
  for (int step = 1; step <= kSteps; ++step)
    alone.step(kMomentum, [&](int rank) { return model->forward(draw(step, rank, 0), draw(step, rank, 1)); });
  for (const Way& way : ways())
    if (!run_ranks(nranks, [&](rondo::Communicator& comm) { train(comm, way, alone); })) return false;
  std::printf("  all have the bits of one process after %d steps\n", kSteps);
  return true;
}
