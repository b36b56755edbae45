// `rondo fsdp plan`: prints layout, buffers, memory, traffic and order of a training step before it runs.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "commands.h"
#include "fsdp_model.h"
#include "rondo/fsdp/forecast.h"
#include "rondo/fsdp/plan.h"

namespace rondo::tools {
namespace {

struct FsdpOptions {
  std::string model, param_dtype, reduce_dtype;
  fsdp::Options plan;
  double line_gb_s = 0, line_us = 0, forward_us = 0;  // a forecast needs all of them
};

[[noreturn]] void fail_fsdp(const std::string& what, const Status& why) {
  fmt::print(stderr, "rondo fsdp plan: {}: {}\n", what, why.message());
  throw CLI::RuntimeError(1);
}

std::optional<Dtype> dtype_of(const std::string& option, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto dtype = dtype_from_name(name);
  if (!dtype) fail_fsdp(option, Status(StatusCode::kInvalidArgument, fmt::format("'{}' is not an element type", name)));
  return dtype;
}

void print_forecast(const fsdp::Plan& plan, const FsdpOptions& o) {
  const auto f = fsdp::forecast(plan, plan.step(), fsdp::line_costs(plan, o.line_gb_s, o.line_us, o.forward_us));
  if (!f.ok()) fail_fsdp("forecast", f.status());
  fmt::print(
      "\ntime of a step, with units that compute {:g} us forward and {:g} us backward, and {:g} GB/s and {:g} us "
      "for each collective:\n",
      o.forward_us, 2 * o.forward_us, o.line_gb_s, o.line_us);
  fmt::print("  computing {:.0f} us, communication {:.0f} us; overlapped {:.0f} us, one after the other {:.0f} us\n",
             f->compute_us, f->line_us, f->overlapped_us, f->serial_us);
  fmt::print("  exposed: {:.0f} us, {:.1f} % of the step\n", f->exposed_us, 100 * f->exposed_us / f->overlapped_us);
}

void run(FsdpOptions o) {
  std::ifstream file(o.model, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) fail_fsdp(o.model, Status(StatusCode::kSystem, "cannot be opened"));
  const auto model = read_model(text);
  if (!model.ok()) fail_fsdp(o.model, model.status());
  o.plan.param_dtype = dtype_of("--param-dtype", o.param_dtype);
  o.plan.reduce_dtype = dtype_of("--reduce-dtype", o.reduce_dtype);
  const auto plan = fsdp::Plan::build(*model, o.plan);
  if (!plan.ok()) fail_fsdp(o.model, plan.status());
  fmt::print("{}", plan->describe());
  if (o.line_gb_s > 0) print_forecast(*plan, o);
}

constexpr const char* kPlanFooter =
    "MODEL.json:\n"
    "  {\"has_root\": true,\n"
    "   \"units\": [{\"name\": \"root\", \"tensors\": [{\"name\": \"embedding\", \"shape\": [50257, 768]}]},\n"
    "             {\"name\": \"block\", \"repeat\": 12, \"tensors\": [{\"name\": \"w\", \"shape\": [768, 768]}]}]}\n"
    "  A tensor may also have dtype, trainable, rows_together and tied_to (docs/fsdp.md).\n\n"
    "Examples:\n"
    "  rondo fsdp plan model.json --ranks 8\n"
    "  rondo fsdp plan model.json --ranks 8 --strategy gradients --param-dtype bfloat16 --reduce-dtype float\n"
    "  rondo fsdp plan model.json --ranks 8 --offload   bytes on the device and in host memory\n"
    "  rondo fsdp plan model.json --ranks 8 --line-gb-s 20 --line-us 30 --forward-us 900   time hidden by prefetch\n";

}  // namespace

void add_fsdp_command(CLI::App& app) {
  CLI::App* fsdp = app.add_subcommand("fsdp", "Plans sharded training of a model and reads its checkpoints");
  fsdp->require_subcommand(1);
  add_fsdp_checkpoint_command(*fsdp);
  CLI::App* command = fsdp->add_subcommand("plan", "Prints layout, buffers, memory, traffic and the order of a step");
  command->footer(kPlanFooter);
  auto o = std::make_shared<FsdpOptions>();
  command->add_option("model", o->model, "Names the JSON file with the model's shapes")->required();
  command->add_option("-n,--ranks", o->plan.nranks, "Sets the number of ranks")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--shard-ranks", o->plan.shard_ranks,
                      "Shards among this many ranks and replicates across them; 0 shards among all");
  const std::map<std::string, fsdp::Strategy> strategies = {{"replicate", fsdp::Strategy::kReplicate},
                                                            {"optimizer", fsdp::Strategy::kShardOptimizer},
                                                            {"gradients", fsdp::Strategy::kShardGradients},
                                                            {"all", fsdp::Strategy::kShardAll}};
  command
      ->add_option("--strategy", o->plan.strategy,
                   "Selects the sharded state: replicate (nothing), optimizer, gradients, all")
      ->transform(CLI::CheckedTransformer(strategies));
  command->add_option("--param-dtype", o->param_dtype, "Sets the type in which parameters are gathered and used");
  command->add_option("--reduce-dtype", o->reduce_dtype, "Sets the type in which gradients are reduced");
  command->add_option("--forward-prefetch", o->plan.forward_prefetch,
                      "Sets the number of units gathered ahead in forward");
  command->add_option("--backward-prefetch", o->plan.backward_prefetch,
                      "Sets the number of units gathered ahead in backward");
  const std::map<std::string, fsdp::BackwardPrefetch> orders = {{"pre", fsdp::BackwardPrefetch::kPre},
                                                                {"post", fsdp::BackwardPrefetch::kPost}};
  command
      ->add_option("--backward-order", o->plan.backward_order,
                   "Issues the next gather before (pre) or after (post) the gradients")
      ->transform(CLI::CheckedTransformer(orders));
  command->add_option("--data-buffers", o->plan.data_buffers,
                      "Sets the number of shared parameter buffers; 0 derives it from the prefetch");
  command->add_option("--grad-buffers", o->plan.grad_buffers,
                      "Sets the number of shared gradient buffers; 0 means two");
  command->add_option("--optimizer-bytes", o->plan.optimizer_bytes,
                      "Sets the bytes of optimizer state for each element (Adam: 8)");
  CLI::Option* line =
      command->add_option("--line-gb-s", o->line_gb_s, "Sets the GB/s of each rank's link for a forecast");
  line->check(CLI::PositiveNumber);
  command->add_option("--line-us", o->line_us, "Sets the latency of a collective in us for a forecast")->needs(line);
  CLI::Option* forward = command->add_option(
      "--forward-us", o->forward_us, "Sets the us of a unit's forward for a forecast; backward takes twice as long");
  forward->needs(line)->check(CLI::PositiveNumber);
  line->needs(forward);
  command->add_flag("--keep-last", o->plan.keep_last, "Keeps the last unit's parameters from forward to backward");
  command->add_flag("--offload", o->plan.offload, "Keeps the ranks' own parts in host memory next to a device");
  command->callback([o] { run(*o); });
}

}  // namespace rondo::tools
