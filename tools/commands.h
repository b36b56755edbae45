// The subcommands of `rondo`. Each function adds a command with its options, help and callback. CLI11 runs the callback
// after it has parsed the command line. A command that fails prints the reason on stderr and throws CLI::RuntimeError
// with the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace rondo::tools {

/// `rondo perf COLLECTIVE`: measures collectives with nccl-tests' flags, columns and JSON keys.
void add_perf_command(CLI::App& app);
/// `rondo explain COLLECTIVE`: prints an algorithm step by step.
void add_explain_command(CLI::App& app);
/// `rondo check`: proves the registered algorithms.
void add_check_command(CLI::App& app);
/// `rondo calibrate`: measures this machine's constants for the planner.
void add_calibrate_command(CLI::App& app);
/// `rondo info`: prints the features of this build and of this machine.
void add_info_command(CLI::App& app);
/// `rondo topo`: prints a host's cores, GPUs and NICs, the places of ranks, and the order of their ring.
void add_topo_command(CLI::App& app);
/// `rondo fsdp plan`: prints the plan of sharded training for a model.
void add_fsdp_command(CLI::App& app);
/// `rondo fsdp checkpoint`: prints the contents of a checkpoint. A subcommand of `rondo fsdp`.
void add_fsdp_checkpoint_command(CLI::App& fsdp);
/// `rondo trace`: exports and summarises traces.
void add_trace_command(CLI::App& app);
/// `rondo diagnose DIR`: prints which ranks wait for which, and why.
void add_diagnose_command(CLI::App& app);

}  // namespace rondo::tools
