// ncclGetUniqueId, ncclCommInit*, and the end of communicators.
#include <fmt/format.h>

#include <cstring>

#include "nccl/abi.h"
#include "nccl/comm_hash.h"
#include "nccl/group.h"
#include "nccl/memory.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

constexpr int kMostRanks = 65535;

// With NCCL_COMM_ID all ranks meet at that address, and rank 0 listens there.
Expected<UniqueId> id_at_place(bool open) {
  return Communicator::unique_id_at(process().environment().comm_id, "NCCL_COMM_ID", open);
}

Status init_rank(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  if (out == nullptr) return null_argument("comm");
  RONDO_TRY_ASSIGN(CommConfig own, read_config(config));
  if (nranks < 1 || nranks > kMostRanks)
    return bad_argument(fmt::format("nranks is {}: expected 1 to {}", nranks, kMostRanks));
  if (rank < 0 || rank >= nranks) return bad_argument(fmt::format("rank is {} of {}", rank, nranks));
  process().announce();
  auto comm = Comm::create(std::move(own));
  comm->hash = hash_of_id(id);
  publish(out, comm->handle);  // before it is made, so that another thread can abort the creation
  const auto run = [comm, nranks, id, rank]() -> Status {
    UniqueId meet = rondo_id(id);
    if (!process().environment().comm_id.empty()) {
      RONDO_TRY_ASSIGN(meet, id_at_place(rank == 0));
    }
    Config how;
    how.abort = comm->token;
    how.memory = comm->memory;
    how.device = comm->device;
    RONDO_TRY_ASSIGN(how.settings, settings_of(comm->config));
    RONDO_TRY_ASSIGN(auto made, Communicator::init_rank(nranks, meet, rank, how));
    comm->become(std::move(made));
    if (process().log().has(LogLevel::kInfo))
      process().log().info(
          fmt::format("communicator {:#x} {}: rank {} of {} is made", comm->hash, comm->config.name, rank, nranks));
    return {};
  };
  return Group::mine().add(Setup{comm, nullptr, out, run});
}

ncclResult_t reported_init(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  Group& group = Group::mine();
  Status s = init_rank(out, nranks, id, rank, config);
  if (!s.ok() && s.code() != StatusCode::kInProgress) (void)group.fail(s);
  return report(s, group.ended_version());
}

Status init_all(ncclComm_t* out, int ndev, const int* devices) {
  if (out == nullptr) return null_argument("comm");
  if (ndev < 1 || ndev > kMostRanks) return bad_argument(fmt::format("ndev is {}: expected 1 to {}", ndev, kMostRanks));
  // Several ranks on one device, or on none, are allowed. Negative device numbers are errors anyway.
  for (int i = 0; devices != nullptr && i < ndev; ++i)
    if (devices[i] < 0) return bad_argument(fmt::format("devlist[{}] is {}", i, devices[i]));
  process().announce();
  Config how;
  how.memory = memory_of_process();
  for (int i = 0; how.memory == Memory::kCuda && i < ndev; ++i)
    how.devices.push_back(devices != nullptr ? devices[i] : i);
  RONDO_TRY_ASSIGN(auto made, Communicator::init_all(ndev, how));
  const uint64_t hash = new_hash();
  for (int i = 0; i < ndev; ++i) {
    auto comm = Comm::create(CommConfig());
    comm->device = devices != nullptr ? devices[i] : i;
    comm->hash = hash;
    comm->become(std::move(made[static_cast<size_t>(i)]));
    out[i] = comm->handle;
  }
  return {};
}

Status finalize(const std::shared_ptr<Comm>& comm) {
  if (comm->revoked.load()) return bad_usage("the communicator was revoked: destroy it without ncclCommFinalize");
  if (comm->finalized.load()) return bad_argument("the communicator was already finalized");
  RONDO_TRY(comm->ready());
  return Group::mine().add(Setup{nullptr, comm, nullptr, [comm]() -> Status {
                                   if (comm->finalized.exchange(true))
                                     return bad_argument("the communicator was already finalized");
                                   return comm->inner()->finalize();
                                 }});
}

// A forked child drops its copy of a handle and does not touch its parent's communicator.
bool drop_of_parent(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = process().find(handle);
  if (comm == nullptr || comm->made_here) return false;
  process().remove(handle);
  return true;
}

// Waits only for this rank's work. Other ranks, also in this thread, may end theirs later.
void destroy(const std::shared_ptr<Comm>& comm) {
  comm->wait_for_job();
  Communicator* inner = comm->inner();
  if (inner != nullptr && !comm->finalized.load() && !comm->revoked.load())
    if (const Status s = inner->finalize(); !s.ok()) process().log().info(s.to_string());
  process().remove(comm->handle);
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return report(null_argument("uniqueId"));
  process().announce();
  const bool at_place = !process().environment().comm_id.empty();
  auto made = at_place ? id_at_place(false) : rondo::Communicator::make_unique_id();
  if (made.ok()) std::memcpy(id->internal, made->bytes, sizeof id->internal);
  return report(made.status());
}

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return reported_init(comm, nranks, id, rank, nullptr);
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return reported_init(comm, nranks, id, rank, config);
}

// One rendezvous, the first id's, serves every number of ranks. The other ids are not used.
ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int num_ids, ncclUniqueId* ids,
                                       ncclConfig_t* config) {
  if (ids == nullptr || num_ids < 1 || num_ids > nranks)
    return report(Group::mine().fail(ids == nullptr
                                         ? null_argument("commIds")
                                         : bad_argument(fmt::format("nId is {} for {} ranks", num_ids, nranks))));
  return reported_init(comm, nranks, ids[0], rank, config);
}

ncclResult_t pncclCommInitAll(ncclComm_t* comms, int ndev, const int* devices) {
  return report(init_all(comms, ndev, devices));
}

ncclResult_t pncclCommFinalize(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(Group::mine().fail(comm.status()));
  const rondo::Status s = finalize(*comm);
  if (!s.ok() && s.code() != rondo::StatusCode::kInProgress) (void)Group::mine().fail(s);
  return report(s, comm->get());
}

ncclResult_t pncclCommDestroy(ncclComm_t handle) {
  if (handle == nullptr || drop_of_parent(handle)) return ncclSuccess;
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  Group::mine().add_last([c = *comm] { destroy(c); });
  return ncclSuccess;
}

ncclResult_t pncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr || drop_of_parent(handle)) return ncclSuccess;
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  (*comm)->abort();
  (*comm)->wait_for_job();
  process().remove(handle);
  return ncclSuccess;
}

// In NCCL a flag would stop this rank's own kernels. rondo's abort also informs the other ranks, even if they have not
// revoked theirs yet.
ncclResult_t pncclCommRevoke(ncclComm_t handle, int flags) {
  if (handle == nullptr) return ncclSuccess;
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (flags != NCCL_REVOKE_DEFAULT)
    return report(bad_argument(fmt::format("revokeFlags is {}: expected 0", flags)), comm->get());
  rondo::Communicator* inner = (*comm)->inner();
  if (inner == nullptr) return report((*comm)->ready(), comm->get());
  (*comm)->revoked.store(true);
  inner->abort();
  (*comm)->wait_for_job();
  return ncclSuccess;
}

RONDO_NCCL_TWIN(GetUniqueId)
RONDO_NCCL_TWIN(CommInitRank)
RONDO_NCCL_TWIN(CommInitRankConfig)
RONDO_NCCL_TWIN(CommInitRankScalable)
RONDO_NCCL_TWIN(CommInitAll)
RONDO_NCCL_TWIN(CommFinalize)
RONDO_NCCL_TWIN(CommDestroy)
RONDO_NCCL_TWIN(CommAbort)
RONDO_NCCL_TWIN(CommRevoke)
