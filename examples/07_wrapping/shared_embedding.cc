// As in T5, encoder, decoder and the last layer share one embedding. Tied parameters must be in one unit, so it belongs
// to the unit around its users, which stays gathered from the start of forward to the end of backward.
//
// The task: reverse a sequence.
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include "models.h"
#include "one_process.h"
#include "ranks.h"

namespace {

constexpr int64_t kWords = 12, kLength = 6, kWidth = 16, kBatch = 32;
constexpr int kSteps = 120;
const rondo::fsdp::OptimizerConfig kAdamW{.rule = rondo::fsdp::Rule::kAdamW, .lr = 0.01f};

// x: batch x length x width. Mixes positions, then the values at each position.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        places(register_module("places", torch::nn::Linear(kLength, kLength))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + places(x.transpose(1, 2)).transpose(1, 2);
    return x + down(torch::relu(up(norm(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear places, up, down;
};
RONDO_TORCH_MODULE(Block);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const torch::nn::Embedding& shared) : shared(register_module("shared", shared)) {
    for (int i = 0; i < 2; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  // ids: batch x length; beside: added to their embeddings.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& beside) {
    torch::Tensor x = shared(ids) + beside;
    for (Block& block : blocks) x = block(x);
    return norm(x);
  }
  torch::nn::Embedding shared;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
};
RONDO_TORCH_MODULE(Stack);

struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl()
      : shared(register_module("shared", torch::nn::Embedding(kWords, kWidth))),
        encoder(register_module("encoder", Stack(shared))),
        decoder(register_module("decoder", Stack(shared))) {
    fill(*this);
  }
  // The mean loss of the reversed words, in nats. The decoder only sees the encoder's output.
  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor memory = encoder(ids, torch::zeros({1}));
    const torch::Tensor logits = torch::matmul(decoder(torch::zeros_like(ids), memory), shared->weight.t());
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.flip(1).flatten());
  }
  torch::nn::Embedding shared;
  Stack encoder, decoder;
};
TORCH_MODULE(Translator);

torch::Tensor words(int step, int rank) {
  const auto seed = static_cast<uint64_t>(step * 64 + rank);
  return torch::randint(kWords, {kBatch, kLength}, at::detail::createCPUGenerator(seed), torch::kInt64);
}

// Two stacks that share an embedding, without a unit around them that uses it too.
void show_that_ties_across_units_are_refused(rondo::Communicator& comm) {
  std::vector<rondo::torch::UnitParameters> units;
  const torch::Tensor shared = torch::ones({kWords, kWidth}, torch::requires_grad());
  units.push_back({"encoder", {{"shared", shared}}});
  units.push_back({"decoder", {{"shared", shared}}});
  std::string why;
  try {
    rondo::torch::shard_units(units, comm);
  } catch (const rondo::torch::Error& e) {
    why = e.what();
  }
  expect(why.find("encoder.shared") != std::string::npos && why.find("decoder.shared") != std::string::npos,
         "ties across units are refused, and both are named");
  if (comm.rank() == 0) std::printf("  without a unit around both: %s\n", why.c_str());
}

void train(rondo::Communicator& comm, const char* name, const rondo::torch::Policy& policy, const OneProcess& alone) {
  auto sharded = rondo::torch::fully_shard(Translator(), comm,
                                           {.policy = policy, .engine = {.optimizer = kAdamW, .deterministic = true}});
  double first = 0, last = 0;
  for (int step = 1; step <= kSteps; ++step) {
    torch::Tensor loss = sharded(words(step, comm.rank()));
    (step == 1 ? first : last) = loss.item<double>();
    loss.backward();
    sharded.step();
  }
  if (comm.rank() == 0) {
    std::printf("  %s: %zu units, loss %.2f to %.3f\n", name, sharded.plan().units().size(), first, last);
    for (const auto& unit : sharded.plan().units())
      std::printf("    %-16s %6llu B%s\n", unit.name.empty() ? "(around them)" : unit.name.c_str(),
                  static_cast<unsigned long long>(unit.data_bytes), unit.resident ? ", stays" : "");
  }
  for (const char* path : {"shared.weight: unit 0 ''\n", "encoder.shared.weight: unit 0 '', tied",
                           "decoder.shared.weight: unit 0 '', tied"})
    expect(sharded.describe().find(path) != std::string::npos, std::string("the plan has '") + path + "'");
  expect(last < first / 4, "it learns");
  alone.compare(sharded, 0);
}

}  // namespace

bool run_shared_embedding(int nranks) {
  std::printf("embedding: shared by encoder, decoder and the last layer\n");
  Translator model;
  OneProcess alone(*model, nranks);
  for (int step = 1; step <= kSteps; ++step)
    alone.step(kAdamW, [&](int rank) { return model->forward(words(step, rank)); });
  return run_ranks(nranks, show_that_ties_across_units_are_refused) &&
         run_ranks(nranks, [&](rondo::Communicator& comm) {
           train(comm, "wrap_types<Stack>", rondo::torch::wrap_types<StackImpl>(), alone);
           train(comm, "wrap_types<Stack, Block>", rondo::torch::wrap_types<StackImpl, BlockImpl>(), alone);
           if (comm.rank() == 0) std::printf("  both have the bits of one process after %d steps\n", kSteps);
         });
}
