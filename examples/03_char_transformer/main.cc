// Trains a small transformer on the characters of real text, sharded among the ranks of the environment (README.md).
// Rank 0 prints losses and tokens per second and draws loss.svg. Every rank prints its memory beside the plan.
#include <rondo/communicator.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>

#include "model.h"
#include "text.h"

namespace {

struct Settings {
  Shape shape;
  int steps = 200, every = 20;
  int64_t batch = 8;
  float lr = 1e-3f;
  rondo::fsdp::Strategy strategy = rondo::fsdp::Strategy::kShardAll;
  std::string text = "/usr/share/common-licenses", out = ".";
  int64_t sample = 200;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double mean_of_ranks(rondo::Communicator& comm, double mine) {
  double mean = mine;
  const auto status = comm.all_reduce(&mine, &mean, 1, rondo::Dtype::kFloat64, rondo::Op::kAvg);
  if (!status.ok()) throw rondo::torch::Error(status);
  return mean;
}

void report_memory(rondo::torch::Training& training, rondo::Communicator& comm) {
  const rondo::fsdp::Memory m = training.plan().memory(comm.rank());
  uint64_t model_bytes = 0;
  for (const auto& unit : training.plan().units()) model_bytes += unit.data_bytes;
  if (comm.rank() == 0)
    std::printf("model: %.2f MB in %zu units; %d ranks through %s\n", static_cast<double>(model_bytes) / 1e6,
                training.plan().units().size(), comm.size(), std::string(comm.transport()).c_str());
  for (int r = 0; r < comm.size(); ++r) {
    if (r == comm.rank()) {
      std::printf("rank %d: %llu bytes, planned %llu: master %llu, gradients %llu, optimizer %llu, buffers %llu\n", r,
                  static_cast<unsigned long long>(training.engine().owned_bytes()),
                  static_cast<unsigned long long>(m.total()), static_cast<unsigned long long>(m.master),
                  static_cast<unsigned long long>(m.grads), static_cast<unsigned long long>(m.optimizer),
                  static_cast<unsigned long long>(m.data_buffers + m.grad_buffers));
      std::fflush(stdout);
    }
    (void)mean_of_ranks(comm, 0);  // one after the other
  }
}

// All ranks compute the text; rank 0 prints it.
std::string write_text(rondo::torch::Sharded<TransformerImpl>& sharded, const Settings& s) {
  const torch::NoGradGuard no_grad;
  std::string text = "The ";
  for (int64_t i = 0; i < s.sample; ++i) {
    const std::string end =
        text.substr(text.size() - std::min<size_t>(text.size(), static_cast<size_t>(s.shape.context)));
    torch::Tensor ids = torch::empty({1, static_cast<int64_t>(end.size())}, torch::kInt64);
    std::transform(end.begin(), end.end(), ids.data_ptr<int64_t>(), [](char c) { return static_cast<int64_t>(c); });
    const torch::Tensor logits = sharded.run([&] { return sharded->logits(ids); });
    text += static_cast<char>(torch::multinomial(torch::softmax(logits[0][-1] / 0.7, 0), 1).item<int64_t>());
  }
  return text;
}

void train(rondo::Communicator& comm, const Settings& s) {
  const std::string text = read_text(s.text);
  if (text.size() <= static_cast<size_t>(s.shape.context) + 1)
    throw std::runtime_error("--text " + s.text + ": there are fewer characters than --context");
  torch::manual_seed(1);
  rondo::torch::Options options;
  options.policy = rondo::torch::wrap_types<BlockImpl>();
  options.plan.strategy = s.strategy;
  options.engine.optimizer = {.rule = rondo::fsdp::Rule::kAdamW, .lr = s.lr, .weight_decay = 0.01f};
  options.engine.clip_norm = 1;
  auto sharded = rondo::torch::fully_shard(Transformer(s.shape), comm, options);
  report_memory(sharded, comm);

  std::vector<std::pair<int, double>> curve;
  double sum = 0, since_s = now_s();
  for (int step = 1; step <= s.steps; ++step) {
    const auto seed = static_cast<uint64_t>(step) * 1000 + static_cast<uint64_t>(comm.rank());
    const Batch batch = draw_batch(text, s.batch, s.shape.context, seed);
    torch::Tensor loss = sharded(batch.ids, batch.next);
    loss.backward();
    sharded.step();
    sum += loss.item<double>();
    const int steps = step % s.every == 0 ? s.every : step == s.steps ? step % s.every : 0;
    if (steps == 0) continue;
    const double mean = mean_of_ranks(comm, sum / steps), took_s = now_s() - since_s;
    const auto tokens = static_cast<double>(s.batch * s.shape.context * comm.size() * steps);
    const rondo::fsdp::Stats stats = sharded.engine().stats();
    if (comm.rank() == 0)
      std::printf("step %4d  loss %.3f  %6.0f tokens/s  %.1f ms a step, of which %.1f waiting for others\n", step, mean,
                  tokens / took_s, took_s / steps * 1e3,
                  static_cast<double>(stats.gather_wait_ns + stats.reduce_wait_ns) / 1e6 / steps);
    std::fflush(stdout);
    curve.emplace_back(step, mean);
    sharded.engine().reset_stats();
    sum = 0, since_s = now_s();
  }

  torch::manual_seed(2);  // equal on all ranks: they draw the same characters
  const std::string sample = write_text(sharded, s);
  if (comm.rank() != 0) return;
  std::printf("\n%s\n", sample.c_str());
  const std::string path = s.out + "/loss.svg";
  if (!draw_curve(path, curve, "loss in nats per character, " + std::to_string(comm.size()) + " ranks"))
    throw std::runtime_error("cannot write " + path);
  std::printf("\nwritten: %s\n", path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app{"Trains a small transformer on characters, sharded among ranks"};
  app.add_option("--steps", s.steps, "steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--every", s.every, "steps between two lines")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", s.batch, "sequences a rank and step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--dim", s.shape.dim, "width, a multiple of 4 heads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", s.shape.layers, "blocks, each a unit")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--context", s.shape.context, "characters in a sequence")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", s.lr, "learning rate of AdamW")->capture_default_str();
  app.add_option("--text", s.text, "a file, or a folder of files")->check(CLI::ExistingPath)->capture_default_str();
  app.add_option("--out", s.out, "folder for loss.svg")->check(CLI::ExistingDirectory)->capture_default_str();
  app.add_option("--sample", s.sample, "characters to write at the end")->capture_default_str();
  const std::map<std::string, rondo::fsdp::Strategy> strategies{{"replicate", rondo::fsdp::Strategy::kReplicate},
                                                                {"zero1", rondo::fsdp::Strategy::kShardOptimizer},
                                                                {"zero2", rondo::fsdp::Strategy::kShardGradients},
                                                                {"zero3", rondo::fsdp::Strategy::kShardAll}};
  app.add_option("--strategy", s.strategy, "what is sharded: replicate (nothing), zero1, zero2, zero3 (default)")
      ->transform(CLI::CheckedTransformer(strategies));
  CLI11_PARSE(app, argc, argv);
  try {
    at::set_num_threads(1);  // ranks share the cores
    auto comm = rondo::Communicator::init_env();
    if (!comm.ok()) throw rondo::torch::Error(comm.status());
    train(**comm, s);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
