// ncclGetUniqueId, ncclCommInit*, and the end of communicators.
#include <atomic>
#include <cstring>

#include "nccl/abi.h"
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

Status init_all(ncclComm_t* out, int ndev, const int* devices) {
  if (out == nullptr) return null_argument("comm");
  if (ndev < 1 || ndev > kMostRanks) return invalid_argument("ndev is {}: expected 1 to {}", ndev, kMostRanks);
  // Several ranks on one device, or on none, are allowed. Negative device numbers are errors anyway.
  for (int i = 0; devices != nullptr && i < ndev; ++i)
    if (devices[i] < 0) return invalid_argument("devlist[{}] is {}", i, devices[i]);
  process().announce();
  Config how;
  how.memory = memory_of_process();
  RONDO_TRY_ASSIGN(how.settings, settings_of(CommConfig(), how.memory));
  for (int i = 0; how.memory == Memory::kCuda && i < ndev; ++i)
    how.devices.push_back(devices != nullptr ? devices[i] : i);
  RONDO_TRY_ASSIGN(auto made, Communicator::init_all(ndev, how));
  static std::atomic<uint64_t> num_calls{0};
  const uint64_t hash = hash_of_child(reinterpret_cast<uintptr_t>(&num_calls), num_calls.fetch_add(1), 0);
  for (int i = 0; i < ndev; ++i) {
    auto comm = Comm::create(CommConfig());
    comm->device = devices != nullptr ? devices[i] : i;
    comm->hash = hash;
    comm->become(std::move(made[static_cast<size_t>(i)]));
    out[i] = comm->handle;
  }
  return {};
}

Status finalize(Comm& comm) {
  if (comm.revoked.load()) return unsupported("the communicator was revoked: destroy it without ncclCommFinalize");
  if (comm.finalized.load()) return invalid_argument("the communicator was already finalized");
  RONDO_TRY(comm.ready());
  const auto run = [&comm]() -> Status {
    if (comm.finalized.exchange(true)) return invalid_argument("the communicator was already finalized");
    return comm.inner()->finalize();
  };
  return Group::mine().add(Setup{nullptr, comm.shared_from_this(), nullptr, run});
}

// A forked child drops its copy of a handle and does not touch its parent's communicator.
bool drop_of_parent(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = process().find(handle);
  if (comm == nullptr || comm->made_here) return false;
  process().remove(handle);
  return true;
}

// Waits only for this rank's work. Other ranks, also in this thread, may end theirs later.
void destroy(Comm& comm) {
  comm.wait_for_job();
  Communicator* inner = comm.inner();
  if (inner != nullptr && !comm.finalized.load() && !comm.revoked.load())
    if (const Status s = inner->finalize(); !s.ok()) process().log().info(s.to_string());
  process().remove(comm.handle);
}

// A call on device memory may be queued behind work of the caller that never ends, and so may its job. The job and
// Communicator's destructor then end without this thread.
void free_aborted(Comm& comm) {
  comm.wait_for_job(std::chrono::seconds(2));
  process().remove(comm.handle);
}

}  // namespace

Status init_rank(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config,
                 bool may_be_at_place) {
  if (out == nullptr) return null_argument("comm");
  RONDO_TRY_ASSIGN(CommConfig own, read_config(config));
  if (nranks < 1 || nranks > kMostRanks) return invalid_argument("nranks is {}: expected 1 to {}", nranks, kMostRanks);
  if (rank < 0 || rank >= nranks) return invalid_argument("rank is {} of {}", rank, nranks);
  process().announce();
  auto comm = Comm::create(std::move(own));
  comm->hash = hash_of_id(rondo_id(id));
  publish(out, comm->handle);  // before it is made, so that another thread can abort the creation
  const auto run = [comm, nranks, id, rank, may_be_at_place]() -> Status {
    UniqueId meet = rondo_id(id);
    if (may_be_at_place && !process().environment().comm_id.empty()) {
      RONDO_TRY_ASSIGN(meet, id_at_place(rank == 0));
    }
    Config how;
    how.abort = comm->token;
    how.memory = comm->memory;
    how.device = comm->device;
    RONDO_TRY_ASSIGN(how.settings, settings_of(comm->config, comm->memory));
    RONDO_TRY_ASSIGN(auto made, Communicator::init_rank(nranks, meet, rank, how));
    comm->become(std::move(made));
    if (process().log().has(LogLevel::kInfo))
      process().log().info(
          fmt::format("communicator {:#x} {}: rank {} of {} is made", comm->hash, comm->config.name, rank, nranks));
    return {};
  };
  return Group::mine().add(Setup{comm, nullptr, out, run});
}

}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, GetUniqueId)(ncclUniqueId* id) {
  if (id == nullptr) return report(null_argument("uniqueId"));
  process().announce();
  const bool at_place = !process().environment().comm_id.empty();
  auto made = at_place ? id_at_place(false) : rondo::Communicator::make_unique_id();
  if (made.ok()) std::memcpy(id->internal, made->bytes, sizeof id->internal);
  return report(made.status());
}

RONDO_NCCL(ncclResult_t, CommInitRank)(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return report_in_group(init_rank(comm, nranks, id, rank, nullptr, true));
}

RONDO_NCCL(ncclResult_t, CommInitRankConfig)
(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return report_in_group(init_rank(comm, nranks, id, rank, config, true));
}

// One rendezvous, the first id's, serves every number of ranks. The other ids are not used.
RONDO_NCCL(ncclResult_t, CommInitRankScalable)
(ncclComm_t* comm, int nranks, int rank, int num_ids, ncclUniqueId* ids, ncclConfig_t* config) {
  if (ids == nullptr) return report_in_group(null_argument("commIds"));
  if (num_ids < 1 || num_ids > nranks)
    return report_in_group(invalid_argument("nId is {} for {} ranks", num_ids, nranks));
  return report_in_group(init_rank(comm, nranks, ids[0], rank, config, true));
}

RONDO_NCCL(ncclResult_t, CommInitAll)(ncclComm_t* comms, int ndev, const int* devices) {
  return report(init_all(comms, ndev, devices));
}

RONDO_NCCL(ncclResult_t, CommFinalize)(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return on_comm_in_group(handle, finalize);
}

RONDO_NCCL(ncclResult_t, CommDestroy)(ncclComm_t handle) {
  if (handle == nullptr || drop_of_parent(handle)) return ncclSuccess;
  return on_comm(handle, [](Comm& comm) {
    Group::mine().add_last([c = comm.shared_from_this()] { destroy(*c); });
    return Status();
  });
}

RONDO_NCCL(ncclResult_t, CommAbort)(ncclComm_t handle) {
  if (handle == nullptr || drop_of_parent(handle)) return ncclSuccess;
  return on_comm(handle, [](Comm& comm) {
    comm.abort();
    Group::mine().add_last([c = comm.shared_from_this()] { free_aborted(*c); });
    return Status();
  });
}

// In NCCL a flag would stop this rank's own kernels. rondo's abort also informs the other ranks, even if they have not
// revoked theirs yet.
RONDO_NCCL(ncclResult_t, CommRevoke)(ncclComm_t handle, int flags) {
  if (handle == nullptr) return ncclSuccess;
  return on_comm(handle, [flags](Comm& comm) -> Status {
    if (flags != NCCL_REVOKE_DEFAULT) return invalid_argument("revokeFlags is {}: expected 0", flags);
    if (comm.inner() == nullptr) return comm.ready();
    comm.revoked.store(true);
    comm.inner()->abort();
    comm.wait_for_job();
    return {};
  });
}
