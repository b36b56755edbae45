// `rondo`: the command line. See commands.h. Every subcommand has --help.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "rondo/rondo.h"

namespace {

/// If an option is repeated, the last value counts. Scripts that append to a command line rely on this.
void let_the_last_hold(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->nonpositional() && option->get_items_expected_max() == 1) option->take_last();
  for (CLI::App* command : app.get_subcommands({})) let_the_last_hold(*command);
}

/// Returns argv. If this program runs through a link named all_reduce_perf, inserts `perf all_reduce_perf`.
std::vector<std::string> command_line(int argc, char** argv) {
  std::vector<std::string> line(argv, argv + argc);
  const std::string_view path(argc > 0 ? argv[0] : "");
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (name.ends_with("_perf")) line.insert(line.begin() + 1, {"perf", std::string(name)});
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "rondo: shows, checks and measures collectives.\n\n"
      "Examples:\n"
      "  rondo explain all_reduce --algo ring --ranks 3 --elements 6   prints every step of the ring\n"
      "  rondo check                                                   proves every algorithm\n"
      "  rondo perf all_reduce --ranks 2 -b 1K -e 64M -f 2             measures 2 processes, nccl-tests' table\n"
      "  rondo calibrate                                               measures this machine for the planner\n"
      "  rondo info                                                    prints this build and this machine\n"
      "  rondo topo                                                    prints cores, GPUs, NICs, places of ranks\n"
      "  rondo fsdp plan model.json --ranks 8                          prints owners, gathers, reductions and memory\n"
      "  rondo fsdp checkpoint run/step100 --verify                    prints the contents and verifies them\n"};
  app.name("rondo");
  app.set_version_flag("--version", std::string("rondo ") + rondo_version());
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  rondo::tools::add_explain_command(app);
  rondo::tools::add_check_command(app);
  rondo::tools::add_perf_command(app);
  rondo::tools::add_calibrate_command(app);
  rondo::tools::add_info_command(app);
  rondo::tools::add_topo_command(app);
  rondo::tools::add_fsdp_command(app);
  rondo::tools::add_trace_command(app);
  rondo::tools::add_diagnose_command(app);
  let_the_last_hold(app);
  std::vector<std::string> line = command_line(argc, argv);
  if (line.size() <= 1) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  }
  std::vector<const char*> words;
  for (const std::string& word : line) words.push_back(word.c_str());
  CLI11_PARSE(app, static_cast<int>(words.size()), words.data());
  return 0;
}
