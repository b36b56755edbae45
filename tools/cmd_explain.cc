// `rondo explain`: prints an algorithm step by step (src/schedule/renderer.h).
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "commands.h"
#include "perf_options.h"
#include "plugin.h"
#include "schedule/own_algorithms.h"
#include "schedule/renderer.h"

namespace rondo::tools {
namespace {

struct ExplainArgs {
  std::string collective;
  std::string algo;  // empty: ring, or the first in the list
  ExplainOptions options;
  int nranks = 4;
  std::string hosts;  // empty: one host
  int64_t num_elems = -1;
  bool full = false;
  bool list = false;
  bool unproven = false;
  Plugins plugins;
};

void list_algorithms() {
  for (const Algorithm& a : all_algorithms())
    std::printf("%-15s %-19s %s\n", std::string(collective_name(a.collective)).c_str(), std::string(a.name).c_str(),
                std::string(a.summary).c_str());
}

const Algorithm* default_algorithm(Collective collective) {
  if (const Algorithm* ring = find_algorithm(collective, "ring")) return ring;
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective) return &a;
  return nullptr;
}

[[noreturn]] void fail_explain(const std::string& message) {
  std::fprintf(stderr, "rondo explain: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

/// Draws the algorithm up to its first error and prints the error. Exit status 1 if there is one.
void run_unproven(const Algorithm& algorithm, const ExplainOptions& options) {
  const Explained explained = explain_unproven(algorithm, options);
  std::fputs(explained.text.c_str(), stdout);
  if (!explained.right) throw CLI::RuntimeError(1);
  if (const Status status = prove_for_registration(algorithm); !status.ok()) {
    std::printf("\nright with these ranks%s, but wrong elsewhere: %s\n",
                collective_is_rooted(algorithm.collective) ? " and this root" : "",
                std::string(status.message()).c_str());
    throw CLI::RuntimeError(1);
  }
  std::printf("\nproven for these ranks, and for 1 to 8 beside every other algorithm\n");
}

void run(ExplainArgs& args) {
  args.plugins.load("explain", args.unproven);
  if (args.list) return list_algorithms();
  if (args.collective.empty()) fail_explain("which collective? e.g. rondo explain all_reduce (or --list)");
  const Expected<Collective> collective = named_collective(args.collective);
  if (!collective.ok()) fail_explain(std::string(collective.status().message()));
  if (is_point_to_point(*collective))
    fail_explain(std::string(collective_name(*collective)) +
                 " is one message between two ranks: there is nothing to explain");
  const Expected<const Algorithm*> named =
      args.algo.empty() ? default_algorithm(*collective) : named_algorithm(*collective, args.algo);
  if (!named.ok()) fail_explain(std::string(named.status().message()));
  const Algorithm* algorithm = *named;
  if (algorithm == nullptr)
    fail_explain("there is no algorithm for " + std::string(collective_name(*collective)) + " (rondo explain --list)");
  args.options.hosts = args.nranks;
  if (!args.hosts.empty()) {
    const Expected<HostLayout> layout = HostLayout::parse(args.hosts);
    if (!layout.ok()) fail_explain(std::string(layout.status().message()));
    if (layout->nranks() > kMaxExplainRanks)
      fail_explain("at most " + std::to_string(kMaxExplainRanks) + " ranks are explained");
    args.options.hosts = *layout;
  }
  const int nranks = args.options.hosts.nranks();
  args.options.has_elements = args.num_elems >= 0;
  if (args.options.has_elements) args.options.num_elems = static_cast<uint64_t>(args.num_elems);
  if (args.options.root != 0 && !collective_is_rooted(*collective))
    fail_explain(std::string(collective_name(*collective)) + " has no root");
  if (args.options.root >= nranks)
    fail_explain("the root, rank " + std::to_string(args.options.root) + ", is none of the " + std::to_string(nranks) +
                 " ranks");
  if (args.full) args.options.fold_at = 0;
  if (args.unproven) return run_unproven(*algorithm, args.options);
  std::fputs(explain(*algorithm, args.options).c_str(), stdout);
}

}  // namespace

void add_explain_command(CLI::App& app) {
  auto args = std::make_shared<ExplainArgs>();
  CLI::App* command = app.add_subcommand(
      "explain", "Prints an algorithm step by step: the messages of each step, and the data of every rank after it");
  command->add_option("collective", args->collective,
                      "Names the collective: all_reduce, broadcast, all_to_all, ... (see --list)");
  command
      ->add_option("--algo,--algorithm,-a", args->algo,
                   "Names the algorithm, see --list (default: ring if there is one)")
      ->type_name("NAME");
  CLI::Option* ranks = command->add_option("--ranks,-n", args->nranks, "Sets the number of ranks")
                           ->check(CLI::Range(1, kMaxExplainRanks).description(""))
                           ->type_name("N")
                           ->capture_default_str();
  command
      ->add_option(
          "--hosts", args->hosts,
          "Sets ranks and hosts instead of --ranks: 2x4 (two hosts of four), 3+2, 0,1,0,1 (the host of each rank)")
      ->type_name("LAYOUT")
      ->excludes(ranks);
  command->add_option("--root,-r", args->options.root, "Sets the root of a broadcast, reduce, gather or scatter")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->type_name("RANK")
      ->capture_default_str();
  command
      ->add_option("--elements,-e", args->num_elems,
                   "Sets the elements of the whole vector (the larger of a rank's input and output), and shows the "
                   "elements of every message")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""))
      ->type_name("N");
  command->add_option("--step,-s", args->options.step, "Shows only this step")
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->type_name("N");
  command->add_flag("--full", args->full, "Prints all ranks and steps without folding");
  command->add_flag("--list", args->list, "Lists collectives and algorithms");
  command->add_flag(
      "--unproven", args->unproven,
      "Draws an algorithm that may be wrong, up to its first error, and prints the error (exit status 1)");
  args->plugins.add_to(*command);
  command->footer(
      "Examples:\n"
      "  rondo explain all_reduce --algo ring --ranks 3 --elements 6\n"
      "  rondo explain all-gather --ranks 5 --step 2\n"
      "  rondo explain broadcast --ranks 8 --root 3\n"
      "  rondo explain all_reduce --algo tree --ranks 16 --full\n"
      "  rondo explain all_reduce --algo hierarchical --hosts 2x2\n"
      "  rondo explain --plugin ./libmine.so all_reduce --algo mine --unproven\n");
  command->callback([args] { run(*args); });
}

}  // namespace rondo::tools
