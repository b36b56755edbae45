// Starts the ranks of `rondo perf --ranks N`: this program again, N times, as its children.
//
// The children find their world in RONDO_RANK, RONDO_NRANKS and RONDO_UNIQUE_ID; the rendezvous runs in the parent.
// They die with the parent (PR_SET_PDEATHSIG). When one of them dies, the parent names it and how, gives the others ten
// seconds to notice and to say so, and then ends them.
#pragma once

#include <string>
#include <vector>

namespace rondo::tools {

/// True in a process that launch_processes started.
bool is_launched_rank();
/// `args`: this program's argv. 0 when all ranks ended well; says on stderr which did not.
int launch_processes(int nranks, const std::vector<std::string>& args);

}  // namespace rondo::tools
