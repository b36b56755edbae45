// Versions, errors and logs, groups, and queries of a communicator.
#include <cstring>
#include <string>

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
  return on_comm(handle, [&](Comm& comm) -> Status {
    if (to == nullptr) return null_argument(name);
    if (comm.inner() == nullptr) return comm.ready();
    *to = read(comm);
    return {};
  });
}

Status read_properties(Comm& comm, ncclCommProperties_t* to) {
  if (to == nullptr) return null_argument("properties");
  constexpr size_t kPrefixBytes = offsetof(ncclCommProperties_t, rank);
  if (to->magic != NCCL_API_MAGIC || to->size < kPrefixBytes)
    return invalid_argument("properties: begin with NCCL_COMM_PROPERTIES_INITIALIZER");
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
  if (suspend && flags != NCCL_SUSPEND_MEM) return invalid_argument("flags is {}: expected NCCL_SUSPEND_MEM", flags);
  RONDO_TRY(comm.ready());
  // There is no device memory to release or to take back: only the state changes.
  if (comm.suspended.exchange(suspend) == suspend)
    return suspend ? unsupported("the communicator is already suspended")
                   : unsupported("the communicator is not suspended");
  return {};
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, GetVersion)(int* version) {
  if (version == nullptr) return report(null_argument("version"));
  *version = kPresentedVersion;
  return ncclSuccess;
}

RONDO_NCCL(const char*, GetErrorString)(ncclResult_t result) { return result_text(result); }

RONDO_NCCL(const char*, GetLastError)(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = handle != nullptr ? process().find(handle) : nullptr;
  return last_error(comm != nullptr && comm->made_here ? comm.get() : nullptr);
}

RONDO_NCCL(void, ResetDebugInit)() { process().reset_log(); }
void ncclResetDebugInitInternal() { process().reset_log(); }

RONDO_NCCL(ncclResult_t, CommGetAsyncError)(ncclComm_t handle, ncclResult_t* error) {
  return on_comm(handle, [error](Comm& comm) -> Status {
    if (error == nullptr) return null_argument("asyncError");
    *error = report_again(comm.async_error(), &comm);
    return {};
  });
}

RONDO_NCCL(ncclResult_t, CommCount)(const ncclComm_t comm, int* count) {
  return ask(comm, count, "count", [](const Comm& c) { return c.inner()->size(); });
}
RONDO_NCCL(ncclResult_t, CommUserRank)(const ncclComm_t comm, int* rank) {
  return ask(comm, rank, "rank", [](const Comm& c) { return c.inner()->rank(); });
}
RONDO_NCCL(ncclResult_t, CommCuDevice)(const ncclComm_t comm, int* device) {
  return ask(comm, device, "device", [](const Comm& c) { return c.device; });
}

RONDO_NCCL(ncclResult_t, CommQueryProperties)(ncclComm_t handle, ncclCommProperties_t* properties) {
  return on_comm(handle, [properties](Comm& comm) { return read_properties(comm, properties); });
}

RONDO_NCCL(ncclResult_t, CommSuspend)(ncclComm_t handle, int flags) {
  return on_comm(handle, [flags](Comm& comm) { return set_suspended(comm, true, flags); });
}
RONDO_NCCL(ncclResult_t, CommResume)(ncclComm_t handle) {
  return on_comm(handle, [](Comm& comm) { return set_suspended(comm, false, 0); });
}

// All statistics are about GPU memory. A communicator of host memory has none. Memory of connections is freed only with
// the communicator.
RONDO_NCCL(ncclResult_t, CommMemStats)(ncclComm_t handle, ncclCommMemStat_t stat, uint64_t* value) {
  return on_comm(handle, [stat, value](Comm& comm) -> Status {
    if (value == nullptr) return null_argument("value");
    if (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal)
      return invalid_argument("stat is {}: expected 0 to 3", static_cast<int>(stat));
    if (stat == ncclStatGpuMemSuspended) *value = comm.suspended.load() ? 1 : 0;
    else *value = stat != ncclStatGpuMemSuspend && comm.inner() != nullptr ? comm.inner()->device_bytes() : 0;
    return {};
  });
}

RONDO_NCCL(ncclResult_t, GroupStart)() {
  Group::mine().start();
  return ncclSuccess;
}

RONDO_NCCL(ncclResult_t, GroupEnd)() {
  const Status s = Group::mine().end();
  return report(s, Group::mine().ended_version());
}

RONDO_NCCL(ncclResult_t, GroupSimulateEnd)(ncclSimInfo_t* info) {
  constexpr size_t kLeastBytes = offsetof(ncclSimInfo_t, estimatedTime) + sizeof info->estimatedTime;
  if (info != nullptr && (info->magic != NCCL_SIM_MAGIC || info->size < kLeastBytes))
    return report_in_group(invalid_argument("simInfo: begin with NCCL_SIM_INFO_INITIALIZER"));
  double us = 0;
  const Status s = Group::mine().simulate(&us);
  if (s.ok() && info != nullptr) info->estimatedTime = static_cast<float>(us);
  return report(s);
}

constexpr size_t kLeastPskBytes = 32;  // as in NCCL

RONDO_NCCL(ncclResult_t, SetEncryption)(const ncclEncryptionConfig_t* config) {
  if (config == nullptr) return report(null_argument("config"));
  if (config->magic != NCCL_API_MAGIC || config->size < sizeof *config)
    return report(invalid_argument("config: begin with NCCL_ENCRYPTION_CONFIG_INITIALIZER"));
  if (config->mode == NCCL_ENCRYPTION_MODE_NONE) {
    rondo::set_encryption(rondo::Encryption{});
    return ncclSuccess;
  }
  if (config->mode != NCCL_ENCRYPTION_MODE_PSK)
    return report(invalid_argument("config.mode is {}: expected 0 or 1", config->mode));
  if (config->psk == nullptr) return report(null_argument("config.psk"));
  const std::string psk(config->psk);
  if (psk.size() < kLeastPskBytes)
    return report(invalid_argument("config.psk has {} bytes: a pre-shared key has at least {}, the same on all ranks",
                                   psk.size(), kLeastPskBytes));
  rondo::set_encryption(rondo::Encryption{true, psk});
  return ncclSuccess;
}
