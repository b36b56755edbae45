// Small models, and the training of one process on the same data: gradients of all ranks' micro-batches, added in rank
// order.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <map>
#include <set>

#include "rondo/torch/fully_shard.h"
#include "support/spawn.h"

namespace rondo::torch::testing {

namespace nn = ::torch::nn;
using rondo::testing::spawn;
using rondo::testing::World;
using ::torch::Tensor;

inline Tensor random(::torch::IntArrayRef sizes, uint64_t seed) {
  return ::torch::rand(sizes, ::at::detail::createCPUGenerator(seed)) - 0.5;
}

/// Equal values on every rank, independent of other threads. Norms keep theirs.
inline void fill(nn::Module& module, uint64_t seed = 1) {
  const ::torch::NoGradGuard no_grad;
  for (auto& p : module.named_parameters())
    if (p.value().min().item<float>() != p.value().max().item<float>() || p.value().numel() == 1)
      p.value().copy_(random(p.value().sizes(), seed + std::hash<std::string>()(p.key()) % 1000));
}

using Linear = Holder<nn::LinearImpl>;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t dim)
      : up(register_module("up", Linear(dim, dim + 3))), down(register_module("down", Linear(dim + 3, dim))) {}
  Tensor forward(Tensor x) {
    if (probe) probe();
    return x + down(::torch::tanh(up(x)));
  }
  Linear up, down;
  std::function<void()> probe;
};
RONDO_TORCH_MODULE(Block);

/// A head and a scale of the outermost unit around blocks. Returns a loss.
struct NetImpl : nn::Module {
  NetImpl(int blocks, int64_t dim) : dim(dim) {
    scale = register_parameter("scale", ::torch::ones({dim}));
    for (int i = 0; i < blocks; ++i) this->blocks.push_back(register_module("block" + std::to_string(i), Block(dim)));
    head = register_module("head", Linear(dim, 1));
    fill(*this);
  }
  Tensor forward(Tensor x, Tensor y) {
    x = x * scale;
    for (Block& b : blocks) x = recomputes ? recompute([b](Tensor t) mutable { return b(t); }, x) : b(x);
    return ::torch::mse_loss(head(x).squeeze(-1), y);
  }
  int64_t dim;
  bool recomputes = false;
  Tensor scale;
  std::vector<Block> blocks;
  Linear head{nullptr};
};
RONDO_TORCH_MODULE(Net);

struct Data {
  Tensor x, y;
};
inline Data data_of(int64_t dim, int step, int micro_batch, int rank) {
  const auto seed = static_cast<uint64_t>((step * 100 + micro_batch) * 100 + rank);
  return {random({4, dim}, seed), random({4}, seed + 7)};
}

using Values = std::map<std::string, Tensor>;
template <class Model>
Values values_of(Model& model) {
  Values all;
  for (const auto& p : model->named_parameters()) all[p.key()] = p.value().detach().clone();
  return all;
}

/// loss(model, step, micro_batch, rank).
template <class Model, class Loss>
Values train_alone(Model model, const fsdp::OptimizerConfig& optimizer, int nranks, int micro_batches, int steps,
                   Loss loss) {
  std::map<std::string, Tensor> parameters;  // tied ones once
  std::set<const void*> seen;
  for (auto& p : model->named_parameters())
    if (p.value().requires_grad() && seen.insert(p.value().unsafeGetTensorImpl()).second)
      parameters[p.key()] = p.value();
  std::map<std::string, std::vector<Tensor>> states;
  for (int step = 1; step <= steps; ++step) {
    std::map<std::string, Tensor> mean;
    for (int m = 0; m < micro_batches; ++m) {
      std::map<std::string, Tensor> sum;
      for (int r = 0; r < nranks; ++r) {
        for (auto& [name, p] : parameters) p.mutable_grad() = ::torch::zeros_like(p);
        loss(model, step, m, r).backward();
        for (auto& [name, p] : parameters) sum[name] = r == 0 ? p.grad().clone() : sum[name] + p.grad();
      }
      for (auto& [name, s] : sum) mean[name] = m == 0 ? s / nranks : mean[name] + s / nranks;
    }
    const ::torch::NoGradGuard no_grad;
    for (auto& [name, p] : parameters) {
      auto& s = states[name];
      if (s.empty()) s = {::torch::zeros_like(p), ::torch::zeros_like(p)};
      float* both[2] = {s[0].template data_ptr<float>(), s[1].template data_ptr<float>()};
      fsdp::optimizer_step(optimizer, step, 1, static_cast<uint64_t>(p.numel()), p.template data_ptr<float>(),
                           mean[name].template data_ptr<float>(), both);
    }
  }
  return values_of(model);
}

/// Compares this rank's own parts with one process: bit for bit, or within `tolerance`.
inline void expect_values(Training& training, const Values& alone, double tolerance = 0) {
  for (const fsdp::Part& p : training.engine().parts()) {
    const fsdp::UnitPlan& u = training.plan().units()[static_cast<size_t>(p.unit)];
    const std::string name = (u.name.empty() ? "" : u.name + ".") + u.tensors[p.tensor].name;
    const Tensor mine = ::torch::from_blob(p.master, {static_cast<int64_t>(p.num_elems)});
    const Tensor other = alone.at(name).flatten().narrow(0, static_cast<int64_t>(p.first), mine.numel());
    const double off = mine.numel() == 0 ? 0 : (mine - other).abs().max().item<double>();
    EXPECT_TRUE(::torch::equal(mine, other) || (tolerance > 0 && off <= tolerance)) << name << " differs by " << off;
  }
}

inline void expect_log(Training& training, const std::vector<fsdp::PassKind>& passes, Rank rank) {
  std::vector<fsdp::Communication> expected;
  for (const fsdp::PassKind kind : passes)
    for (const auto& c : training.plan().communications(rank, training.plan().pass(kind))) expected.push_back(c);
  const fsdp::Log& log = training.engine().log();
  ASSERT_EQ(log.size(), expected.size());
  for (size_t i = 0; i < log.size(); ++i)
    EXPECT_TRUE(log[i].act == expected[i].act && log[i].unit == expected[i].unit &&
                log[i].payload_bytes == expected[i].payload_bytes &&
                std::strcmp(log[i].collective, expected[i].collective) == 0)
        << "communication " << i << ": unit " << log[i].unit << " in place of " << expected[i].unit;
}

/// Limits torch's own threads, which would exceed the cores.
template <class Fn>
void spawn_ranks(int nranks, Fn fn) {
  spawn(World::kThreads, nranks, [&](Communicator& comm) {
    ::at::set_num_threads(1);
    try {
      fn(comm);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << comm.rank() << ": " << e.what();
      comm.abort();
    }
  });
}

inline fsdp::OptimizerConfig momentum(float lr = 0.02f) {
  return {.rule = fsdp::Rule::kSgd, .lr = lr, .momentum = 0.9f};
}

inline Options by_block(const fsdp::OptimizerConfig& optimizer = momentum()) {
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
inline void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* w : words) EXPECT_NE(text.find(w), std::string::npos) << "'" << w << "' is not in: " << text;
}

}  // namespace rondo::torch::testing
