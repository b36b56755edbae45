// Communicators from communicators: ncclCommSplit, ncclCommShrink, ncclCommGrow. All are collective and wait for the
// other ranks, so in a group each rank of this process gets a thread (Group).
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

// A child's config: the caller's, or else the parent's.
Expected<CommConfig> config_for_child(const Comm& parent, const ncclConfig_t* config) {
  if (config == nullptr) return parent.config;
  return read_config(config);
}

Expected<Config> config_of(const Comm& child) {
  Config how;
  RONDO_TRY_ASSIGN(how.settings, settings_of(child.config));
  how.abort = child.token;
  if (child.inner() == nullptr && child.memory == Memory::kCuda) {
    how.memory = child.memory;
    how.device = child.device;
  }
  return how;
}

// For a revoked parent, whose connections are closed: the ranks meet as after a failure, then split.
Expected<std::unique_ptr<Communicator>> split_revoked(Communicator& parent, int colour, int key, const Config& how) {
  RONDO_TRY_ASSIGN(auto all, parent.shrink({}, how));
  if (all->size() != parent.size())
    return Status(StatusCode::kPeerLost, fmt::format("split of a revoked communicator: {} of its {} ranks are left; "
                                                     "ncclCommShrink goes on without the others",
                                                     all->size(), parent.size()));
  return all->split(colour, key, how);
}

Status split(const std::shared_ptr<Comm>& parent, int colour, int key, ncclComm_t* out, const ncclConfig_t* config) {
  if (out == nullptr) return null_argument("newcomm");
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(*parent, config));
  if (colour < 0 && colour != NCCL_SPLIT_NOCOLOR)
    return bad_argument(fmt::format("color is {}: expected 0 or more, or NCCL_SPLIT_NOCOLOR", colour));
  if (!parent->revoked.load()) RONDO_TRY(parent->usable());
  else RONDO_TRY(parent->ready());
  const uint64_t hash = hash_of_child(parent->hash, ++parent->num_children, colour);
  publish(out, nullptr);
  std::shared_ptr<Comm> child;
  if (colour != NCCL_SPLIT_NOCOLOR) {
    child = Comm::create(std::move(own));
    child->device = parent->device;
    child->memory = parent->memory;
    child->hash = hash;
    publish(out, child->handle);
  }
  const auto run = [parent, child, colour, key]() -> Status {
    Communicator& from = *parent->inner();
    Config how;
    if (child != nullptr) {
      RONDO_TRY_ASSIGN(how, config_of(*child));
    }
    RONDO_TRY_ASSIGN(auto made,
                     parent->revoked.load() ? split_revoked(from, colour, key, how) : from.split(colour, key, how));
    if (child != nullptr) child->become(std::move(made));
    return {};
  };
  return Group::mine().add(Setup{child, parent, child != nullptr ? out : nullptr, run});
}

struct Exclusion {
  const int* ranks;
  int num;
  int flags;
};

Status shrink(const std::shared_ptr<Comm>& parent, const Exclusion& exclusion, ncclComm_t* out,
              const ncclConfig_t* config) {
  if (out == nullptr) return null_argument("newcomm");
  if (exclusion.flags != NCCL_SHRINK_DEFAULT && exclusion.flags != NCCL_SHRINK_ABORT)
    return bad_argument(
        fmt::format("shrinkFlags is {}: expected NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT", exclusion.flags));
  if (exclusion.num < 1 || exclusion.ranks == nullptr)
    return bad_argument("the list of excluded ranks is empty: list the ranks to leave out of the new communicator");
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(*parent, config));
  Communicator* inner = parent->inner();
  if (inner == nullptr) return parent->ready();
  const std::vector<Rank> excluded(exclusion.ranks, exclusion.ranks + exclusion.num);
  for (const Rank r : excluded)
    if (r < 0 || r >= inner->size() || r == inner->rank())
      return bad_argument(fmt::format("the list of excluded ranks names {}: {}", r,
                                      r == inner->rank() ? "the caller" : "there is no such rank"));
  if (exclusion.flags == NCCL_SHRINK_ABORT) {  // ends the running operations
    inner->abort();
    parent->wait_for_job();
  } else if (parent->async_error().code() == StatusCode::kInProgress) {
    return parent->ready();
  }
  const uint64_t hash = hash_of_child(parent->hash, ++parent->num_children, -2);
  auto child = Comm::create(std::move(own));
  child->device = parent->device;
  child->memory = parent->memory;
  child->hash = hash;
  publish(out, child->handle);
  const auto run = [parent, child, excluded]() -> Status {
    RONDO_TRY_ASSIGN(const Config how, config_of(*child));
    RONDO_TRY_ASSIGN(auto made, parent->inner()->shrink(excluded, how));
    child->become(std::move(made));
    return {};
  };
  return Group::mine().add(Setup{child, parent, out, run});
}

// Any rank may have the id from ncclCommGetUniqueId, but rondo's grow needs it on rank 0.
Expected<UniqueId> shared_id(Comm& comm, const std::optional<UniqueId>& mine) {
  struct Offer {
    uint8_t has;
    UniqueId id;
  };
  Offer own = {mine.has_value(), mine.value_or(UniqueId{})};
  std::vector<Offer> all(static_cast<size_t>(comm.inner()->size()));
  RONDO_TRY(gather_bytes(comm, &own, all.data(), sizeof own));
  for (const Offer& o : all)
    if (o.has != 0) return o.id;
  return bad_argument("no rank gave a unique id: the one that called ncclCommGetUniqueId passes it to ncclCommGrow");
}

uint64_t hash_of(const UniqueId& id) {
  ncclUniqueId same;
  std::memcpy(same.internal, id.bytes, sizeof same.internal);
  return hash_of_id(same);
}

// For a rank of the old communicator. It keeps its rank.
Status grow_old(const std::shared_ptr<Comm>& parent, int nranks, const ncclUniqueId* id, ncclComm_t* out,
                const ncclConfig_t* config) {
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(*parent, config));
  RONDO_TRY(parent->usable());
  if (nranks <= parent->inner()->size())
    return bad_argument(
        fmt::format("nRanks is {}, but the communicator already has {}", nranks, parent->inner()->size()));
  if (id != nullptr && !parent->id_pending)
    return bad_usage("the unique id is not from this communicator's ncclCommGetUniqueId, or was already used");
  auto child = Comm::create(std::move(own));
  child->device = parent->device;
  child->memory = parent->memory;
  publish(out, child->handle);
  std::optional<UniqueId> mine;
  if (id != nullptr) mine = rondo_id(*id);
  const auto run = [parent, child, nranks, mine]() -> Status {
    RONDO_TRY_ASSIGN(const UniqueId common, shared_id(*parent, mine));
    RONDO_TRY_ASSIGN(const Config how, config_of(*child));
    RONDO_TRY_ASSIGN(auto made, parent->inner()->grow(nranks, &common, how));
    child->hash = hash_of(common);
    child->become(std::move(made));
    if (mine) parent->id_pending = false;
    return {};
  };
  return Group::mine().add(Setup{child, parent, out, run});
}

Status grow_new(int nranks, const ncclUniqueId* id, int rank, ncclComm_t* out, const ncclConfig_t* config) {
  if (id == nullptr) return null_argument("uniqueId, which a new rank needs,");
  RONDO_TRY_ASSIGN(CommConfig own, read_config(config));
  if (rank < 0 || rank >= nranks) return bad_argument(fmt::format("rank is {} of {}", rank, nranks));
  process().announce();
  auto child = Comm::create(std::move(own));
  child->hash = hash_of_id(*id);
  publish(out, child->handle);
  const auto run = [child, nranks, rank, meet = rondo_id(*id)]() -> Status {
    RONDO_TRY_ASSIGN(const Config how, config_of(*child));
    RONDO_TRY_ASSIGN(auto made, Communicator::init_rank(nranks, meet, rank, how));
    child->become(std::move(made));
    return {};
  };
  return Group::mine().add(Setup{child, nullptr, out, run});
}

// Ends an entry point that may be in a group.
ncclResult_t finish(const Status& s, Comm* comm) {
  if (!s.ok() && s.code() != StatusCode::kInProgress) (void)Group::mine().fail(s);
  return report(s, comm);
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

ncclResult_t pncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return finish(comm.status(), nullptr);
  return finish(split(*comm, color, key, part, config), comm->get());
}

ncclResult_t pncclCommShrink(ncclComm_t handle, int* excluded, int num_excluded, ncclComm_t* smaller,
                             ncclConfig_t* config, int flags) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return finish(comm.status(), nullptr);
  return finish(shrink(*comm, {excluded, num_excluded, flags}, smaller, config), comm->get());
}

ncclResult_t pncclCommGetUniqueId(ncclComm_t handle, ncclUniqueId* id) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (id == nullptr) return report(null_argument("uniqueId"), comm->get());
  if (const rondo::Status s = (*comm)->usable(); !s.ok()) return report(s, comm->get());
  if ((*comm)->id_pending)
    return report(bad_usage("ncclCommGrow has not used this communicator's previous id yet"), comm->get());
  auto made = rondo::Communicator::make_unique_id();
  if (!made.ok()) return report(made.status(), comm->get());
  std::memcpy(id->internal, made->bytes, sizeof id->internal);
  (*comm)->id_pending = true;
  return ncclSuccess;
}

ncclResult_t pncclCommGrow(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* larger,
                           ncclConfig_t* config) {
  if (larger == nullptr) return finish(null_argument("newcomm"), nullptr);
  if (handle == nullptr) return finish(grow_new(nranks, id, rank, larger, config), nullptr);
  auto comm = find_comm(handle);
  if (!comm.ok()) return finish(comm.status(), nullptr);
  if (rank != -1)
    return finish(
        bad_argument(fmt::format("rank is {}: ranks of the old communicator keep their ranks and pass -1", rank)),
        comm->get());
  return finish(grow_old(*comm, nranks, id, larger, config), comm->get());
}

RONDO_NCCL_TWIN(CommSplit)
RONDO_NCCL_TWIN(CommShrink)
RONDO_NCCL_TWIN(CommGetUniqueId)
RONDO_NCCL_TWIN(CommGrow)
