// One rank of rondo's side of bench/compare_fsdp: the transformer of examples/03_char_transformer, in steps that the
// driver asks for. Reads numbers of steps, one a line, from stdin; answers with the seconds that they took.
// Arguments: dim layers context batch.
#include <rondo/communicator.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "03_char_transformer/model.h"

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: step_time_rondo DIM LAYERS CONTEXT BATCH\n"), 2;
  at::set_num_threads(1);
  Shape shape;
  shape.dim = std::atol(argv[1]), shape.layers = std::atol(argv[2]), shape.context = std::atol(argv[3]);
  const int64_t batch = std::atol(argv[4]);
  auto comm = rondo::Communicator::init_env();
  if (!comm.ok()) return std::fprintf(stderr, "%s\n", comm.status().to_string().c_str()), 1;
  torch::manual_seed(1);
  rondo::torch::Options options;
  options.policy = rondo::torch::wrap_types<BlockImpl>();
  options.engine.optimizer = {.rule = rondo::fsdp::Rule::kAdamW, .lr = 1e-3f, .weight_decay = 0.01f};
  auto sharded = rondo::torch::fully_shard(Transformer(shape), **comm, options);
  const auto ids = torch::randint(shape.vocabulary, {batch, shape.context}, torch::kInt64);
  const auto next = torch::randint(shape.vocabulary, {batch, shape.context}, torch::kInt64);
  int steps = 0;
  while (std::cin >> steps) {
    const auto start = std::chrono::steady_clock::now();
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      auto result = sharded(ids, next);
      result.backward();
      sharded.step();
      loss = result.item<double>();
    }
    const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::cout << took_s << ' ' << loss << std::endl;
  }
  return 0;
}
