// Starts the example's ranks: those of a launcher (mpirun, srun, torchrun), or --ranks N processes that this one forks
// before it has any thread. The forked processes end when this process does.
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
  std::vector<pid_t> children;  // only in rank 0
};

/// nranks 0: from the launcher's environment. Returns in every rank, each its own process. Errors: kSystem (pipe,
/// fork), and those of Communicator's init.
rondo::Expected<Ranks> start_ranks(int nranks);
/// Waits for the processes that start_ranks forked. False: one of them failed.
bool join_ranks(const Ranks& ranks);

}  // namespace plain
