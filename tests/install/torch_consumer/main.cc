// One rank trains a linear layer towards zero.
#include <rondo/torch/fully_shard.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

int main() {
  auto comms = rondo::Communicator::init_all(1);
  if (!comms.ok()) return std::fprintf(stderr, "%s\n", comms.status().to_string().c_str()), 1;
  rondo::torch::Options options;
  options.engine.optimizer = {.rule = rondo::fsdp::Rule::kSgd, .lr = 0.01f};
  auto sharded = rondo::torch::fully_shard(torch::nn::Linear(4, 2), *(*comms)[0], options);
  double loss = 0;
  for (int step = 0; step < 50; ++step) {
    auto result = sharded(torch::ones({3, 4})).square().sum();
    result.backward();
    sharded.step();
    loss = result.item<double>();
  }
  std::printf("loss %g\n", loss);
  return loss < 1e-3 ? 0 : 1;
}
