// A user of sharded training: one SGD step of one element on the host.
#include <rondo/fsdp/optimizer.h>

int main() {
  const rondo::fsdp::OptimizerConfig sgd{.rule = rondo::fsdp::Rule::kSgd, .lr = 0.5f};
  float param = 2;
  const float grad = 1;
  rondo::fsdp::optimizer_step(sgd, 1, 1, 1, &param, &grad, nullptr);
  return rondo::fsdp::check_optimizer(sgd).ok() && param == 1.5f ? 0 : 1;
}
