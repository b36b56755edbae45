// How the example's ranks come to be: those of a launcher (mpirun, srun, torchrun), or --ranks N processes that this
// one forks before it has any thread. They end when this process does.
//
// Thread safety: once, at the start of the program.
#pragma once

#include <rondo/communicator.h>
#include <sys/types.h>

#include <memory>
#include <vector>

namespace plain {

struct Ranks {
  std::unique_ptr<rondo::Communicator> comm;
  std::vector<pid_t> children;  // of rank 0 alone
};

/// nranks 0: as the launcher's environment says. Returns in every rank, each a process of its own. Errors: kSystem
/// (pipe, fork), those of Communicator's init.
rondo::Expected<Ranks> start_ranks(int nranks);
/// Waits for what start_ranks has forked; false where one failed.
bool join_ranks(const Ranks& ranks);

}  // namespace plain
