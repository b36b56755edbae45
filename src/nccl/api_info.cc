// Versions, errors and logs, groups, and queries of a communicator.
#include <fmt/format.h>

#include <cstring>

#include "config/encryption.h"
#include "nccl/abi.h"
#include "nccl/group.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

// Returns a number that is known once the communicator is made.
template <class Read>
ncclResult_t ask(ncclComm_t handle, int* to, const char* name, Read&& read) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (to == nullptr) return report(null_argument(name), comm->get());
  if ((*comm)->inner() == nullptr) return report((*comm)->ready(), comm->get());
  *to = read(**comm);
  return ncclSuccess;
}

Status read_properties(Comm& comm, ncclCommProperties_t* to) {
  if (to == nullptr) return null_argument("properties");
  constexpr size_t kPrefixBytes = offsetof(ncclCommProperties_t, rank);
  if (to->magic != NCCL_API_MAGIC || to->size < kPrefixBytes)
    return bad_argument("properties: begin with NCCL_COMM_PROPERTIES_INITIALIZER");
  if (comm.inner() == nullptr) return comm.ready();
  ncclCommProperties_t all = {};  // host memory: no device features
  all.rank = comm.inner()->rank();
  all.nRanks = comm.inner()->size();
  all.cudaDev = all.nvmlDev = comm.device;
  all.nLsaTeams = comm.inner()->size();  // no rank can reach another rank's device memory
  all.commHash = comm.hash;
  const size_t known = std::min(to->size, sizeof all);
  std::memcpy(reinterpret_cast<std::byte*>(to) + kPrefixBytes, reinterpret_cast<const std::byte*>(&all) + kPrefixBytes,
              known - kPrefixBytes);
  return {};
}

Status set_suspended(Comm& comm, bool suspend, int flags) {
  if (suspend && flags != NCCL_SUSPEND_MEM)
    return bad_argument(fmt::format("flags is {}: expected NCCL_SUSPEND_MEM", flags));
  RONDO_TRY(comm.ready());
  // There is no device memory to release or to take back: only the state changes.
  if (comm.suspended.exchange(suspend) == suspend)
    return bad_usage(suspend ? "the communicator is already suspended" : "the communicator is not suspended");
  return {};
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

ncclResult_t pncclGetVersion(int* version) {
  if (version == nullptr) return report(null_argument("version"));
  *version = kPresentedVersion;
  return ncclSuccess;
}

const char* pncclGetErrorString(ncclResult_t result) { return result_text(result); }

const char* pncclGetLastError(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = handle != nullptr ? process().find(handle) : nullptr;
  return last_error(comm != nullptr && comm->made_here ? comm.get() : nullptr);
}

void pncclResetDebugInit() { process().reset_log(); }
void ncclResetDebugInitInternal() { process().reset_log(); }

ncclResult_t pncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (error == nullptr) return report(null_argument("asyncError"), comm->get());
  const rondo::Status s = (*comm)->async_error();
  if (s.code() == rondo::StatusCode::kInProgress) *error = ncclInProgress;
  else *error = report_again(s, comm->get());
  return ncclSuccess;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return ask(comm, count, "count", [](const Comm& c) { return c.inner()->size(); });
}
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return ask(comm, rank, "rank", [](const Comm& c) { return c.inner()->rank(); });
}
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return ask(comm, device, "device", [](const Comm& c) { return c.device; });
}

ncclResult_t pncclCommQueryProperties(ncclComm_t handle, ncclCommProperties_t* properties) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(read_properties(**comm, properties), comm->get());
}

ncclResult_t pncclCommSuspend(ncclComm_t handle, int flags) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(set_suspended(**comm, true, flags), comm->get());
}
ncclResult_t pncclCommResume(ncclComm_t handle) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(set_suspended(**comm, false, 0), comm->get());
}

// All statistics are about GPU memory. A communicator of host memory has none. Memory of connections is freed only with
// the communicator.
ncclResult_t pncclCommMemStats(ncclComm_t handle, ncclCommMemStat_t stat, uint64_t* value) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (value == nullptr) return report(null_argument("value"), comm->get());
  switch (static_cast<int>(stat)) {
    case ncclStatGpuMemSuspended: *value = (*comm)->suspended.load() ? 1 : 0; return ncclSuccess;
    case ncclStatGpuMemSuspend: *value = 0; return ncclSuccess;
    case ncclStatGpuMemPersist:
    case ncclStatGpuMemTotal: {
      rondo::Communicator* inner = (*comm)->inner();
      *value = inner != nullptr ? inner->device_bytes() : 0;
      return ncclSuccess;
    }
    default:
      return report(bad_argument(fmt::format("stat is {}: expected 0 to 3", static_cast<int>(stat))), comm->get());
  }
}

ncclResult_t pncclGroupStart() {
  Group::mine().start();
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd() {
  const rondo::Status s = Group::mine().end();
  return report(s, Group::mine().ended_version());
}

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
  constexpr size_t kLeastBytes = offsetof(ncclSimInfo_t, estimatedTime) + sizeof info->estimatedTime;
  if (info != nullptr && (info->magic != NCCL_SIM_MAGIC || info->size < kLeastBytes))
    return report(Group::mine().fail(bad_argument("simInfo: begin with NCCL_SIM_INFO_INITIALIZER")));
  double us = 0;
  const rondo::Status s = Group::mine().simulate(&us);
  if (s.ok() && info != nullptr) info->estimatedTime = static_cast<float>(us);
  return report(s);
}

constexpr size_t kLeastPskBytes = 32;  // as in NCCL

ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config) {
  if (config == nullptr) return report(null_argument("config"));
  if (config->magic != NCCL_API_MAGIC || config->size < sizeof *config)
    return report(bad_argument("config: begin with NCCL_ENCRYPTION_CONFIG_INITIALIZER"));
  if (config->mode == NCCL_ENCRYPTION_MODE_NONE) {
    rondo::set_encryption(rondo::Encryption{});
    return ncclSuccess;
  }
  if (config->mode != NCCL_ENCRYPTION_MODE_PSK)
    return report(bad_argument(fmt::format("config.mode is {}: expected 0 or 1", config->mode)));
  if (config->psk == nullptr) return report(null_argument("config.psk"));
  const std::string psk(config->psk);
  if (psk.size() < kLeastPskBytes)
    return report(
        bad_argument(fmt::format("config.psk has {} bytes: a pre-shared key has at least {}, the same on all "
                                 "ranks",
                                 psk.size(), kLeastPskBytes)));
  rondo::set_encryption(rondo::Encryption{true, psk});
  return ncclSuccess;
}

RONDO_NCCL_TWIN(GetVersion)
RONDO_NCCL_TWIN(GetErrorString)
RONDO_NCCL_TWIN(GetLastError)
RONDO_NCCL_TWIN(ResetDebugInit)
RONDO_NCCL_TWIN(CommGetAsyncError)
RONDO_NCCL_TWIN(CommCount)
RONDO_NCCL_TWIN(CommUserRank)
RONDO_NCCL_TWIN(CommCuDevice)
RONDO_NCCL_TWIN(CommQueryProperties)
RONDO_NCCL_TWIN(CommSuspend)
RONDO_NCCL_TWIN(CommResume)
RONDO_NCCL_TWIN(CommMemStats)
RONDO_NCCL_TWIN(GroupStart)
RONDO_NCCL_TWIN(GroupEnd)
RONDO_NCCL_TWIN(GroupSimulateEnd)
RONDO_NCCL_TWIN(SetEncryption)
