// The device API and one-sided operations need GPU memory. They are refused with a remedy. Functions on teams are rank
// arithmetic, so they work.
#include <string>

#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

ncclResult_t no_device_api(const char* name) {
  return report(bad_usage(std::string(name) + ": this release does not support the device API, whose GPU kernels need "
                                              "access to rondo's memory; use the host API's collectives"));
}

ncclResult_t no_one_sided(const char* name, ncclComm_t handle) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(bad_usage(std::string(name) + ": this release does not support one-sided operations, which need "
                                              "windows of device memory; use ncclSend and ncclRecv"),
                comm->get());
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

ncclResult_t pncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned int,
                            ncclComm_t comm, cudaStream_t) {
  return no_one_sided("ncclPutSignal", comm);
}
ncclResult_t pncclSignal(int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
  return no_one_sided("ncclSignal", comm);
}
ncclResult_t pncclWaitSignal(int, ncclWaitSignalDesc_t*, ncclComm_t comm, cudaStream_t) {
  return no_one_sided("ncclWaitSignal", comm);
}

// No rank can load or store another rank's device memory, so each rank is its own team.
ncclTeam_t pncclTeamWorld(ncclComm_t comm) { return team_of(comm, true); }
ncclTeam_t pncclTeamLsa(ncclComm_t comm) { return team_of(comm, false); }
ncclTeam_t pncclTeamRail(ncclComm_t comm) { return team_of(comm, true); }
ncclTeam_t pncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t) { return team_of(comm, false); }
ncclTeam_t pncclTeamCftMultimem(ncclComm_t comm) { return team_of(comm, false); }
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) { return world_rank(comm, team, rank); }
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return world_rank(comm, team, rank) - team_of(comm, true).rank;  // the caller is rank 0 of its own team
}

ncclResult_t pncclDevCommCreate(ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*) {
  return no_device_api("ncclDevCommCreate");
}
ncclResult_t pncclDevCommDestroy(ncclComm_t, const ncclDevComm_t*) { return no_device_api("ncclDevCommDestroy"); }

ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void**) {
  return no_device_api("ncclGetLsaMultimemDevicePointer");
}
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t, size_t, ncclMultimemHandle_t, void**) {
  return no_device_api("ncclGetMultimemDevicePointer");
}
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void**) {
  return no_device_api("ncclGetLsaDevicePointer");
}
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void**) {
  return no_device_api("ncclGetPeerDevicePointer");
}
ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, ncclCftLeId*, size_t*) {
  return no_device_api("ncclGetMultimemDeviceLeInfo");
}
ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*) {
  return no_device_api("ncclGetCftDeviceLeInfo");
}
ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, ncclCftLeId*, size_t*) {
  return no_device_api("ncclGetPeerDeviceLeInfo");
}

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t, int, ncclLsaBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return no_device_api("ncclLsaBarrierCreateRequirement");
}
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return no_device_api("ncclGinBarrierCreateRequirement");
}
// Slots have 8 bytes: pure arithmetic, the same for every library.
int pncclLLA2ACalcSlots(int max_elems, int max_elem_bytes) { return max_elems * ((max_elem_bytes + 7) / 8); }
ncclResult_t pncclLLA2ACreateRequirement(int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*) {
  return no_device_api("ncclLLA2ACreateRequirement");
}
ncclResult_t pncclGinOutboxCreateRequirement(int, int, ncclGinOutboxHandle_t*, ncclDevResourceRequirements_t*) {
  return no_device_api("ncclGinOutboxCreateRequirement");
}
ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t, int, int, ncclGinInboxA2AHandle_t*,
                                               ncclDevResourceRequirements_t*) {
  return no_device_api("ncclGinInboxA2ACreateRequirement");
}

RONDO_NCCL_TWIN(PutSignal)
RONDO_NCCL_TWIN(Signal)
RONDO_NCCL_TWIN(WaitSignal)
RONDO_NCCL_TWIN(TeamWorld)
RONDO_NCCL_TWIN(TeamLsa)
RONDO_NCCL_TWIN(TeamRail)
RONDO_NCCL_TWIN(TeamCft)
RONDO_NCCL_TWIN(TeamCftMultimem)
RONDO_NCCL_TWIN(TeamRankToWorld)
RONDO_NCCL_TWIN(TeamRankToLsa)
RONDO_NCCL_TWIN(DevCommCreate)
RONDO_NCCL_TWIN(DevCommDestroy)
RONDO_NCCL_TWIN(GetLsaMultimemDevicePointer)
RONDO_NCCL_TWIN(GetMultimemDevicePointer)
RONDO_NCCL_TWIN(GetLsaDevicePointer)
RONDO_NCCL_TWIN(GetPeerDevicePointer)
RONDO_NCCL_TWIN(GetMultimemDeviceLeInfo)
RONDO_NCCL_TWIN(GetCftDeviceLeInfo)
RONDO_NCCL_TWIN(GetPeerDeviceLeInfo)
RONDO_NCCL_TWIN(LsaBarrierCreateRequirement)
RONDO_NCCL_TWIN(GinBarrierCreateRequirement)
RONDO_NCCL_TWIN(LLA2ACalcSlots)
RONDO_NCCL_TWIN(LLA2ACreateRequirement)
RONDO_NCCL_TWIN(GinOutboxCreateRequirement)
RONDO_NCCL_TWIN(GinInboxA2ACreateRequirement)
