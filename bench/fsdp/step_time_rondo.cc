// One rank of rondo's side of bench/compare_fsdp: the transformer of examples/03_char_transformer. Reads lines "STEPS
// timed|watched" from stdin and answers each with a line of five numbers: seconds, the last loss, seconds blocked in
// waits of the engine, and CPU seconds of this process and of its threads that do not compute. The engine always counts
// its waits, so watched and timed bursts are equal. Arguments: sharded|plain dim layers context batch. Plain is the
// same model without fully_shard, separate in each process. The optimizer is then the same function over all parameters
// instead of a rank's part.
#include <rondo/communicator.h>
#include <rondo/fsdp/optimizer.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>

#include "03_char_transformer/model.h"

namespace {

const rondo::fsdp::OptimizerConfig kAdamW{.rule = rondo::fsdp::Rule::kAdamW, .lr = 1e-3f, .weight_decay = 0.01f};

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class PlainAdamW {
 public:
  explicit PlainAdamW(const torch::nn::Module& module) : parameters_(module.parameters()) {
    for (const auto& p : parameters_) states_.push_back({torch::zeros_like(p), torch::zeros_like(p)});
  }
  void step() {
    const torch::NoGradGuard no_grad;
    ++step_;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      torch::Tensor& p = parameters_[i];
      float* states[2] = {states_[i][0].data_ptr<float>(), states_[i][1].data_ptr<float>()};
      rondo::fsdp::optimizer_step(kAdamW, step_, 1, static_cast<uint64_t>(p.numel()), p.data_ptr<float>(),
                                  p.grad().data_ptr<float>(), states);
      p.mutable_grad().reset();
    }
  }

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<std::array<torch::Tensor, 2>> states_;
  int64_t step_ = 0;
};

// step: runs a training step and returns its loss. blocked_s: seconds since its last call.
void answer(const std::function<double()>& step, const std::function<double()>& blocked_s) {
  int steps = 0;
  for (std::string kind; std::cin >> steps >> kind;) {
    (void)blocked_s();
    const double cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID), own_s = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const double start_s = seconds_of(CLOCK_MONOTONIC);
    double loss = 0;
    for (int i = 0; i < steps; ++i) loss = step();
    const double took_s = seconds_of(CLOCK_MONOTONIC) - start_s;
    const double all_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    const double others_s = all_s - (seconds_of(CLOCK_THREAD_CPUTIME_ID) - own_s);
    std::cout << took_s << ' ' << loss << ' ' << blocked_s() << ' ' << all_s << ' ' << others_s << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 6 ? argv[1] : "";
  if (mode != "sharded" && mode != "plain")
    return std::fprintf(stderr, "usage: step_time_rondo sharded|plain DIM LAYERS CONTEXT BATCH\n"), 2;
  at::set_num_threads(1);
  Shape shape;
  shape.dim = std::atol(argv[2]), shape.layers = std::atol(argv[3]), shape.context = std::atol(argv[4]);
  const int64_t batch = std::atol(argv[5]);
  torch::manual_seed(1);
  const auto ids = torch::randint(shape.vocabulary, {batch, shape.context}, torch::kInt64);
  const auto next = torch::randint(shape.vocabulary, {batch, shape.context}, torch::kInt64);
  Transformer model(shape);
  if (mode == "plain") {
    PlainAdamW optimizer(*model);
    answer(
        [&] {
          auto loss = model->forward(ids, next);
          loss.backward();
          optimizer.step();
          return loss.item<double>();
        },
        [] { return 0.0; });
    return 0;
  }
  auto comm = rondo::Communicator::init_env();
  if (!comm.ok()) return std::fprintf(stderr, "%s\n", comm.status().to_string().c_str()), 1;
  rondo::torch::Options options;
  options.policy = rondo::torch::wrap_types<BlockImpl>();
  options.engine.optimizer = kAdamW;
  auto sharded = rondo::torch::fully_shard(model, **comm, options);
  answer(
      [&] {
        auto loss = sharded(ids, next);
        loss.backward();
        sharded.step();
        return loss.item<double>();
      },
      [&] {
        const rondo::fsdp::Stats stats = sharded.engine().stats();
        sharded.engine().reset_stats();
        return static_cast<double>(stats.gather_wait_ns + stats.reduce_wait_ns) * 1e-9;
      });
  return 0;
}
