// Trains a character model in plain C++ on text of this machine, fully sharded by rondo::fsdp: units, one plan, one
// engine. Prints planned and actual values. Needs no framework and no download.
#include <fmt/format.h>
#include <rondo/trace.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "chart.h"
#include "ranks.h"
#include "trainer.h"

namespace {

using plain::MicroBatch;
using rondo::Dtype;
using rondo::Status;
using rondo::StatusCode;
namespace fsdp = rondo::fsdp;

struct Settings {
  int ranks = 0, steps = 200, micro_batches = 1;
  std::string text = "/usr/share/common-licenses", plot, trace;
  plain::Shape shape;
  fsdp::Options plan;
  fsdp::EngineOptions engine = {.optimizer = {.lr = 3e-3f, .weight_decay = 0.01f}, .clip_norm = 1};
  bool log = false;
};

void add_options(CLI::App& app, Settings& s) {
  const std::map<std::string, fsdp::Strategy> strategies = {{"replicate", fsdp::Strategy::kReplicate},
                                                            {"optimizer", fsdp::Strategy::kShardOptimizer},
                                                            {"gradients", fsdp::Strategy::kShardGradients},
                                                            {"all", fsdp::Strategy::kShardAll}};
  const std::map<std::string, Dtype> dtypes = {{"float", Dtype::kFloat32}, {"bf16", Dtype::kBfloat16}};
  app.add_option("-n,--ranks", s.ranks, "Start this many processes; 0: mpirun, srun or torchrun has started this one")
      ->check(CLI::Range(0, 64));
  app.add_option("--text", s.text, "A file, or a folder whose files are read in the order of their names");
  app.add_option("--steps", s.steps, "Steps of the optimizer")->check(CLI::Range(1, 1000000));
  app.add_option("--micro-batches", s.micro_batches, "Micro-batches of a rank in a step")->check(CLI::Range(1, 1024));
  app.add_option("--batch", s.shape.batch, "Sequences in a micro-batch")->check(CLI::Range(1, 1024));
  app.add_option("--length", s.shape.length, "Characters in a sequence")->check(CLI::Range(1, 1024));
  app.add_option("--width", s.shape.width, "Width of the model, a multiple of --heads")->check(CLI::Range(1, 1024));
  app.add_option("--heads", s.shape.heads, "Heads of attention")->check(CLI::Range(1, 64));
  app.add_option("--layers", s.shape.layers, "Blocks: attention and MLP")->check(CLI::Range(1, 64));
  app.add_option("--lr", s.engine.optimizer.lr, "Learning rate of AdamW");
  app.add_option("--strategy", s.plan.strategy, "What is sharded: replicate (nothing), optimizer, gradients, all")
      ->transform(CLI::CheckedTransformer(strategies));
  app.add_option("--param-dtype", s.plan.param_dtype, "Type of stored and sent parameters and gradients: float, bf16")
      ->transform(CLI::CheckedTransformer(dtypes));
  app.add_flag("--deterministic", s.engine.deterministic, "Bits do not depend on the number of ranks");
  app.add_flag("--log", s.log, "Print the communication of the last step beside the plan");
  app.add_option("--plot", s.plot, "Write the loss of all steps to this SVG");
  app.add_option("--trace", s.trace, "Write traces of all ranks to this folder, for `rondo trace export`");
  app.footer(
      "Examples:\n"
      "  example_04_plain_model --ranks 2 --plot loss.svg\n"
      "  mpirun -n 4 example_04_plain_model --strategy gradients --param-dtype bf16");
}

double megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

uint64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

struct Job {
  const Settings& settings;
  rondo::Communicator& comm;
  plain::Transformer net;
  fsdp::Plan plan;
  std::unique_ptr<fsdp::Engine> engine;
  uint64_t rss_before_bytes = 0;
  bool speaks() const { return comm.rank() == 0; }
};

void print_model(const Job& job, const plain::Text& text) {
  const plain::Shape& s = job.settings.shape;
  uint64_t elems = 0;
  for (const fsdp::UnitPlan& u : job.plan.units())
    for (const fsdp::Segment& segment : u.segments) elems += segment.num_elems;
  fmt::print("text:    {}: {} characters, {} different\n", job.settings.text, text.ids.size(), text.alphabet.size());
  fmt::print(
      "model:   {} blocks, width {}, {} heads: {} parameters in {} units; {} x {} sequences of {} for each rank\n",
      s.layers, s.width, s.heads, elems, job.plan.units().size(), job.settings.micro_batches, s.batch, s.length);
  fmt::print("ranks:   {}, through {}\n", job.comm.size(), job.comm.transport());
}

// Prints rank 0's memory; other ranks own slightly more or less.
void print_memory(const Job& job) {
  const uint64_t planned = job.plan.memory(0).total(), owned = job.engine->owned_bytes();
  fmt::print(
      "memory:  planned {} B, engine has {} B; activations {:.2f} MB; peak RSS {:.2f} MB, {:.2f} MB of it before "
      "the engine was made\n",
      planned, owned, megabytes(job.net.activation_bytes()), megabytes(peak_rss_bytes()),
      megabytes(job.rss_before_bytes));
}

std::string text_of(const Job& job, const fsdp::Communication& c) {
  return fmt::format("{:<15} {:<10} {:>10} B of {:>10} B", c.collective,
                     job.plan.units()[static_cast<size_t>(c.unit)].name, c.payload_bytes, c.whole_bytes);
}

// Compares the log of one step with the plan's list. Errors: kInternal if they differ.
Status compare_log(const Job& job) {
  std::vector<fsdp::Communication> planned;
  for (int m = 1; m <= job.settings.micro_batches; ++m)
    for (const auto& c : job.plan.communications(job.comm.rank(), m == job.settings.micro_batches))
      planned.push_back(c);
  const fsdp::Log& done = job.engine->log();
  bool same = planned.size() == done.size();
  if (job.speaks()) fmt::print("log:     {} planned, {} done\n", planned.size(), done.size());
  for (size_t i = 0; i < std::max(planned.size(), done.size()); ++i) {
    const std::string left = i < planned.size() ? text_of(job, planned[i]) : "nothing";
    const std::string right = i < done.size() ? text_of(job, done[i]) : "nothing";
    same = same && left == right;
    if (job.speaks()) fmt::print("  {}  {} {}\n", left, left == right ? "=" : "!", right);
  }
  return same ? Status() : Status(StatusCode::kInternal, "the engine's communication differs from its plan");
}

// Micro-batches are numbered across all ranks: 4 ranks have the same ones in a step as 1 rank with 4 micro-batches.
std::vector<MicroBatch> batches_of(const Job& job, const plain::Text& text, int step) {
  const auto nranks = static_cast<uint64_t>(job.comm.size()),
             of_rank = static_cast<uint64_t>(job.settings.micro_batches);
  std::vector<MicroBatch> batches;
  for (uint64_t m = 0; m < of_rank; ++m) {
    const uint64_t number =
        (static_cast<uint64_t>(step) * of_rank + m) * nranks + static_cast<uint64_t>(job.comm.rank());
    batches.push_back(cut(text, number, job.settings.shape.batch, job.settings.shape.length));
  }
  return batches;
}

Status train(Job& job, const plain::Text& text) {
  const Settings& s = job.settings;
  plain::Trainer trainer(*job.engine, job.comm, job.net);
  RONDO_TRY(trainer.init());
  std::vector<double> losses;
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  for (int step = 0; step < s.steps; ++step) {
    job.engine->clear_log();
    RONDO_TRY(trainer.step(batches_of(job, text, step)));
    RONDO_TRY_ASSIGN(const double loss, trainer.mean_loss());
    losses.push_back(loss);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool tenth = (step + 1) % std::max(1, s.steps / 10) == 0;
    if (!job.speaks() || !(tenth || step == 0 || step + 1 == s.steps)) continue;
    const double tokens = static_cast<double>(s.shape.batch * s.shape.length) * s.micro_batches * job.comm.size();
    fmt::print("step {:>5}  loss {:.6f}  {:>8.0f} tokens/s\n", step + 1, loss, tokens * (step + 1) / seconds);
    std::fflush(stdout);
  }
  RONDO_TRY_ASSIGN(const uint64_t hash, trainer.parameter_hash());
  if (s.log) RONDO_TRY(compare_log(job));
  if (!job.speaks()) return {};
  print_memory(job);
  const fsdp::Stats stats = job.engine->stats();
  fmt::print(
      "time:    {:.3f} s, of rank 0: {:.3f} s forward and backward, {:.3f} s waiting for gathers, {:.3f} s for "
      "reductions\n",
      seconds, trainer.compute_s(), static_cast<double>(stats.gather_wait_ns) / 1e9,
      static_cast<double>(stats.reduce_wait_ns) / 1e9);
  fmt::print("sent:    {} gathers, {} reductions of units; {:.2f} MB of rank 0's part\n", stats.gathers,
             stats.reductions, megabytes(stats.payload_bytes));
  fmt::print("model:   parameters have the hash {:016x}\n", hash);
  if (s.plot.empty()) return {};
  std::ofstream file(s.plot);
  file << plain::loss_svg(losses);
  file.close();
  return file ? Status() : Status(StatusCode::kSystem, "'" + s.plot + "' cannot be written");
}

Status run_rank(Settings& s, rondo::Communicator& comm) {
  RONDO_TRY_ASSIGN(const plain::Text text, plain::Text::load(s.text, s.shape.length + 1));
  s.shape.vocabulary = text.alphabet.size();
  s.plan.nranks = comm.size();
  plain::Transformer net(s.shape);
  RONDO_TRY_ASSIGN(fsdp::Plan plan, fsdp::Plan::build(net.model(), s.plan));
  const uint64_t rss_before_bytes = peak_rss_bytes();
  RONDO_TRY_ASSIGN(auto engine, fsdp::Engine::create(plan, comm, s.engine));
  Job job{s, comm, std::move(net), std::move(plan), std::move(engine), rss_before_bytes};
  if (job.speaks()) print_model(job, text);
  if (!s.trace.empty()) RONDO_TRY(rondo::trace_start(comm, {s.trace}));
  const Status trained = train(job, text);
  if (!s.trace.empty()) {
    RONDO_TRY(rondo::trace_stop(comm));
    if (job.speaks()) fmt::print("trace:   rondo trace export {} -o trace.json\n", s.trace);
  }
  return trained;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("A character model in plain C++, trained fully sharded");
  add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  if (settings.shape.width % settings.shape.heads != 0) {
    fmt::print(stderr, "--width {} is no multiple of --heads {}\n", settings.shape.width, settings.shape.heads);
    return 1;
  }
  auto ranks = plain::start_ranks(settings.ranks);
  if (!ranks.ok()) return fmt::print(stderr, "{}\n", ranks.status().to_string()), 1;
  Status status = run_rank(settings, *ranks->comm);
  if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", ranks->comm->rank(), status.to_string());
  ranks->comm.reset();  // notifies the other ranks of an error
  return plain::join_ranks(*ranks) && status.ok() ? 0 : 1;
}
