// Starts the ranks of `rondo perf --ranks N`: N child processes that run this program.
//
// The parent runs the rendezvous and passes RONDO_RANK, RONDO_NRANKS and RONDO_UNIQUE_ID. Children die with the parent
// (PR_SET_PDEATHSIG). When a child dies, the parent reports its rank and exit, waits ten seconds for the others to end
// with their own errors, and then kills them.
#pragma once

#include <string>
#include <vector>

namespace rondo::tools {

/// True in a process that launch_processes started.
bool is_launched_rank();
/// `args`: this program's argv. Returns 0 if all ranks succeeded. Prints the failed ranks on stderr.
int launch_processes(int nranks, const std::vector<std::string>& args);

}  // namespace rondo::tools
