// The device API and one-sided operations need GPU memory. They are refused with a remedy. Functions on teams are rank
// arithmetic, so they work.

#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

ncclResult_t no_one_sided(const char* name, ncclComm_t handle) {
  return on_comm(handle, [name](Comm&) {
    return unsupported(
        "{}: this release does not support one-sided operations, which need windows of device memory; use ncclSend and "
        "ncclRecv",
        name);
  });
}

// Without a finished communicator there is no team: returns {0, 0, 0}, and ncclGetLastError has the reason.
ncclTeam_t team_of(ncclComm_t handle, bool whole) {
  auto comm = find_comm(handle);
  Communicator* inner = comm.ok() ? (*comm)->inner() : nullptr;
  if (inner == nullptr) {
    (void)report(comm.ok() ? (*comm)->ready() : comm.status());
    return {0, 0, 0};
  }
  return whole ? ncclTeam_t{inner->size(), inner->rank(), 1} : ncclTeam_t{1, 0, 1};
}

// World rank of `rank` in a team of the caller.
int world_rank(ncclComm_t handle, ncclTeam_t team, int rank) {
  return team_of(handle, true).rank + (rank - team.rank) * team.stride;
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, PutSignal)
(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned int, ncclComm_t comm,
 cudaStream_t) {
  return no_one_sided("ncclPutSignal", comm);
}
RONDO_NCCL(ncclResult_t, Signal)(int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
  return no_one_sided("ncclSignal", comm);
}
RONDO_NCCL(ncclResult_t, WaitSignal)(int, ncclWaitSignalDesc_t*, ncclComm_t comm, cudaStream_t) {
  return no_one_sided("ncclWaitSignal", comm);
}

// No rank can load or store another rank's device memory, so each rank is its own team.
RONDO_NCCL(ncclTeam_t, TeamWorld)(ncclComm_t comm) { return team_of(comm, true); }
RONDO_NCCL(ncclTeam_t, TeamLsa)(ncclComm_t comm) { return team_of(comm, false); }
RONDO_NCCL(ncclTeam_t, TeamRail)(ncclComm_t comm) { return team_of(comm, true); }
RONDO_NCCL(ncclTeam_t, TeamCft)(ncclComm_t comm, ncclCftTeamMode_t) { return team_of(comm, false); }
RONDO_NCCL(ncclTeam_t, TeamCftMultimem)(ncclComm_t comm) { return team_of(comm, false); }
RONDO_NCCL(int, TeamRankToWorld)(ncclComm_t comm, ncclTeam_t team, int rank) { return world_rank(comm, team, rank); }
RONDO_NCCL(int, TeamRankToLsa)(ncclComm_t comm, ncclTeam_t team, int rank) {
  return world_rank(comm, team, rank) - team_of(comm, true).rank;  // the caller is rank 0 of its own team
}

// Slots have 8 bytes: pure arithmetic, the same for every library.
RONDO_NCCL(int, LLA2ACalcSlots)(int max_elems, int max_elem_bytes) { return max_elems * ((max_elem_bytes + 7) / 8); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define RONDO_REFUSED(result, name, parameters)                                                                \
  RONDO_NCCL(result, name) parameters {                                                                        \
    return report(unsupported("nccl" #name                                                                     \
                              ": this release does not support the device API, whose GPU kernels need access " \
                              "to rondo's memory; use the host API's collectives"));                           \
  }
RONDO_NCCL_DEVICE_FUNCTIONS(RONDO_REFUSED)
#undef RONDO_REFUSED
#pragma GCC diagnostic pop
