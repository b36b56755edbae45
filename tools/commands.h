// The subcommands of `rondo`. Each adds itself to the command line with its options and its help, and runs from the
// callback that CLI11 calls once the line is parsed. A command that fails throws CLI::RuntimeError with the exit code,
// after it has said on stderr why.
#pragma once

#include <CLI/CLI.hpp>

namespace rondo::tools {

/// `rondo perf COLLECTIVE`: measures collectives with nccl-tests' flags, columns and JSON keys.
void add_perf_command(CLI::App& app);
/// `rondo explain COLLECTIVE`: prints an algorithm step by step.
void add_explain_command(CLI::App& app);
/// `rondo check`: proves the registered algorithms.
void add_check_command(CLI::App& app);
/// `rondo calibrate`: measures the constants of the planner's forecasts on this machine.
void add_calibrate_command(CLI::App& app);
/// `rondo info`: what this build and this machine have.
void add_info_command(CLI::App& app);
/// `rondo topo`: this host's or another's cores, GPUs and NICs, the places of ranks, ring and tree order.
void add_topo_command(CLI::App& app);
/// `rondo fsdp plan`: what sharded training would do with a model.
void add_fsdp_command(CLI::App& app);
/// `rondo fsdp checkpoint`: what a checkpoint holds. Of `rondo fsdp`.
void add_fsdp_checkpoint_command(CLI::App& fsdp);
/// `rondo trace`: exports and sums up traces.
void add_trace_command(CLI::App& app);
/// `rondo diagnose DIR`: who waits for whom, and why.
void add_diagnose_command(CLI::App& app);

}  // namespace rondo::tools
