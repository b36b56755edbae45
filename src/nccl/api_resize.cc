// Communicators from communicators: ncclCommSplit, ncclCommShrink, ncclCommGrow. All are collective and wait for the
// other ranks, so in a group each rank of this process gets a thread (Group).
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "api/communicator_impl.h"
#include "nccl/abi.h"
#include "nccl/group.h"
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
  RONDO_TRY_ASSIGN(how.settings, settings_of(child.config, child.memory));
  how.abort = child.token;
  if (child.memory == Memory::kCuda) {
    how.memory = child.memory;
    how.device = child.device;
  }
  return how;
}

// Makes a child's handle before its communicator, so that another thread can abort the call.
std::shared_ptr<Comm> make_child(const Comm& parent, CommConfig config, uint64_t hash, ncclComm_t* out) {
  auto child = Comm::create(std::move(config));
  child->device = parent.device;
  child->memory = parent.memory;
  child->hash = hash;
  publish(out, child->handle);
  return child;
}

// For a revoked parent, whose connections are closed: the ranks meet as after a failure, then split.
Expected<std::unique_ptr<Communicator>> split_revoked(Communicator& parent, int colour, int key, const Config& how) {
  RONDO_TRY_ASSIGN(auto all, parent.shrink({}, how));
  if (all->size() != parent.size())
    return make_error(
        StatusCode::kPeerLost,
        "split of a revoked communicator: {} of its {} ranks are left; ncclCommShrink goes on without the others",
        all->size(), parent.size());
  return all->split(colour, key, how);
}

Status split(Comm& parent, int colour, int key, ncclComm_t* out, const ncclConfig_t* config) {
  if (out == nullptr) return null_argument("newcomm");
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(parent, config));
  if (colour < 0 && colour != NCCL_SPLIT_NOCOLOR)
    return invalid_argument("color is {}: expected 0 or more, or NCCL_SPLIT_NOCOLOR", colour);
  if (!parent.revoked.load()) RONDO_TRY(parent.usable());
  else RONDO_TRY(parent.ready());
  const uint64_t hash = hash_of_child(parent.hash, ++parent.num_children, colour);
  publish(out, nullptr);
  std::shared_ptr<Comm> child;
  if (colour != NCCL_SPLIT_NOCOLOR) child = make_child(parent, std::move(own), hash, out);
  const auto run = [&parent, child, colour, key]() -> Status {
    Communicator& from = *parent.inner();
    Config how;
    if (child != nullptr) {
      RONDO_TRY_ASSIGN(how, config_of(*child));
    }
    RONDO_TRY_ASSIGN(auto made,
                     parent.revoked.load() ? split_revoked(from, colour, key, how) : from.split(colour, key, how));
    if (child != nullptr) child->become(std::move(made));
    return {};
  };
  return Group::mine().add(Setup{child, parent.shared_from_this(), child != nullptr ? out : nullptr, run});
}

Status shrink(Comm& parent, std::span<const int> excluded, int flags, ncclComm_t* out, const ncclConfig_t* config) {
  if (out == nullptr) return null_argument("newcomm");
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
    return invalid_argument("shrinkFlags is {}: expected NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT", flags);
  if (excluded.empty())
    return invalid_argument("the list of excluded ranks is empty: list the ranks to leave out of the new communicator");
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(parent, config));
  Communicator* inner = parent.inner();
  if (inner == nullptr) return parent.ready();
  for (const Rank r : excluded)
    if (r < 0 || r >= inner->size() || r == inner->rank())
      return invalid_argument("the list of excluded ranks names {}: {}", r,
                              r == inner->rank() ? "the caller" : "there is no such rank");
  if (flags == NCCL_SHRINK_ABORT) {  // ends the running operations
    inner->abort();
    parent.wait_for_job();
  } else if (parent.async_error().code() == StatusCode::kInProgress) {
    return parent.ready();
  }
  const uint64_t hash = hash_of_child(parent.hash, ++parent.num_children, -2);
  const auto child = make_child(parent, std::move(own), hash, out);
  const auto run = [&parent, child, excluded = std::vector<Rank>(excluded.begin(), excluded.end())]() -> Status {
    RONDO_TRY_ASSIGN(const Config how, config_of(*child));
    RONDO_TRY_ASSIGN(auto made, parent.inner()->shrink(excluded, how));
    child->become(std::move(made));
    return {};
  };
  return Group::mine().add(Setup{child, parent.shared_from_this(), out, run});
}

// For a rank of the old communicator. It keeps its rank.
Status grow_old(Comm& parent, int nranks, const ncclUniqueId* id, ncclComm_t* out, const ncclConfig_t* config) {
  RONDO_TRY_ASSIGN(CommConfig own, config_for_child(parent, config));
  RONDO_TRY(parent.usable());
  if (nranks <= parent.inner()->size())
    return invalid_argument("nRanks is {}, but the communicator already has {}", nranks, parent.inner()->size());
  if (id != nullptr && !parent.id_pending)
    return unsupported("the unique id is not from this communicator's ncclCommGetUniqueId, or was already used");
  const auto child = make_child(parent, std::move(own), 0, out);
  std::optional<UniqueId> mine;
  if (id != nullptr) mine = rondo_id(*id);
  const auto run = [&parent, child, nranks, mine]() -> Status {
    RONDO_TRY_ASSIGN(const Config how, config_of(*child));
    UniqueId common;  // any rank may have called ncclCommGetUniqueId
    RONDO_TRY_ASSIGN(auto made, impl_of(*parent.inner()).grow(nranks, mine ? &*mine : nullptr, how, &common));
    child->hash = hash_of_id(common);
    child->become(CommunicatorImpl::handle(std::move(made)));
    if (mine) parent.id_pending = false;
    return {};
  };
  return Group::mine().add(Setup{child, parent.shared_from_this(), out, run});
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

RONDO_NCCL(ncclResult_t, CommSplit)(ncclComm_t handle, int color, int key, ncclComm_t* part, ncclConfig_t* config) {
  return on_comm_in_group(handle, [=](Comm& comm) { return split(comm, color, key, part, config); });
}

RONDO_NCCL(ncclResult_t, CommShrink)
(ncclComm_t handle, int* excluded, int num_excluded, ncclComm_t* smaller, ncclConfig_t* config, int flags) {
  const std::span<const int> list(excluded, excluded != nullptr ? static_cast<size_t>(std::max(num_excluded, 0)) : 0);
  return on_comm_in_group(handle, [=](Comm& comm) { return shrink(comm, list, flags, smaller, config); });
}

RONDO_NCCL(ncclResult_t, CommGetUniqueId)(ncclComm_t handle, ncclUniqueId* id) {
  return on_comm(handle, [id](Comm& comm) -> Status {
    if (id == nullptr) return null_argument("uniqueId");
    RONDO_TRY(comm.usable());
    if (comm.id_pending) return unsupported("ncclCommGrow has not used this communicator's previous id yet");
    RONDO_TRY_ASSIGN(const auto made, rondo::Communicator::make_unique_id());
    std::memcpy(id->internal, made.bytes, sizeof id->internal);
    comm.id_pending = true;
    return {};
  });
}

RONDO_NCCL(ncclResult_t, CommGrow)
(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* larger, ncclConfig_t* config) {
  if (larger == nullptr) return report_in_group(null_argument("newcomm"));
  if (handle == nullptr) {
    if (id == nullptr) return report_in_group(null_argument("uniqueId, which a new rank needs,"));
    return report_in_group(init_rank(larger, nranks, *id, rank, config, false));
  }
  return on_comm_in_group(handle, [=](Comm& comm) {
    if (rank == -1) return grow_old(comm, nranks, id, larger, config);
    return invalid_argument("rank is {}: ranks of the old communicator keep their ranks and pass -1", rank);
  });
}
