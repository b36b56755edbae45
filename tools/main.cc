// `rondo`: the command line. See commands.h; every subcommand documents itself under --help.
#include <cstdio>

#include "commands.h"
#include "rondo/rondo.h"

int main(int argc, char** argv) {
  CLI::App app{
      "rondo: collectives that can be seen, checked and measured.\n\n"
      "Examples:\n"
      "  rondo explain all_reduce --algo ring --ranks 3 --elements 6   every step of the ring, in letters\n"
      "  rondo check                                                   proves every algorithm\n"
      "  rondo perf all_reduce --ranks 2 -b 1K -e 64M -f 2             2 processes, nccl-tests' table\n"
      "  rondo calibrate                                               measures this machine for the planner\n"
      "  rondo info                                                    this build, this machine\n"
      "  rondo topo                                                    its cores, GPUs, NICs; ring and tree order\n"
      "  rondo fsdp plan model.json --ranks 8                          who owns, gathers and reduces what, and the "
      "memory\n"
      "  rondo fsdp checkpoint run/step100 --verify                    what it holds, and whether it is whole\n"};
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
  if (argc == 1) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  }
  CLI11_PARSE(app, argc, argv);
  return 0;
}
