// Collectives, messages and reduction operators: each entry point fills one Call.
#include <cstring>

#include "nccl/abi.h"
#include "nccl/group.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

using enum Collective;
constexpr Collective kAlltoAll = kAllToAll;  // NCCL's spelling

ncclResult_t run(ncclComm_t handle, Call call, int dtype, int op = ncclSum, const ncclCollConfig_t* config = nullptr) {
  Group& group = Group::mine();
  auto comm = find_comm(handle);
  if (!comm.ok()) return report_in_group(comm.status());
  const std::shared_ptr<Comm>& c = *comm;
  auto pending = prepare(c, std::move(call), dtype, op, config);
  if (!pending.ok()) return report_in_group(pending.status(), c.get());
  if (group.open() || !c->config.blocking) return report_in_group(group.add(std::move(*pending)), c.get());
  return report(issue(*pending), c.get());
}

Status create_premul(ncclRedOp_t* op, const void* scalar, int type, int residence, Comm& comm) {
  if (op == nullptr || scalar == nullptr) return null_argument(op == nullptr ? "op" : "scalar");
  RONDO_TRY(comm.usable());
  if (type < 0 || type >= kNumDtypes) return invalid_argument("datatype is {}, which is not an element type", type);
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return invalid_argument("residence is {}: expected ncclScalarDevice or ncclScalarHostImmediate", residence);
  PremulOperator own;
  own.dtype = static_cast<Dtype>(type);
  if (residence == ncclScalarDevice) own.later = scalar;
  else std::memcpy(own.now, scalar, dtype_bytes(own.dtype));
  const int number = process().next_operator();
  comm.operators[number] = own;
  *op = static_cast<ncclRedOp_t>(number);
  return {};
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT(google-build-using-namespace): entry points only from here

#define RONDO_NCCL_COLLECTIVE(X, name, parameters, root, op)                                           \
  RONDO_NCCL(ncclResult_t, name)(RONDO_NCCL_LIST parameters, ncclComm_t comm, cudaStream_t stream) {   \
    return run(comm, {{k##name, count, root}, in, out, stream}, type, op);                             \
  }                                                                                                    \
  RONDO_NCCL(ncclResult_t, name##Config)                                                               \
  (RONDO_NCCL_LIST parameters, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) { \
    return run(comm, {{k##name, count, root}, in, out, stream}, type, op, config);                     \
  }
RONDO_NCCL_COLLECTIVES(RONDO_NCCL_COLLECTIVE, )
#undef RONDO_NCCL_COLLECTIVE

RONDO_NCCL(ncclResult_t, Bcast)
(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {{kBroadcast, count, root}, buffer, buffer, stream}, type);
}
RONDO_NCCL(ncclResult_t, Send)
(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {{kSend, count, peer}, buffer, nullptr, stream}, type);
}
RONDO_NCCL(ncclResult_t, Recv)
(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {{kRecv, count, peer}, nullptr, buffer, stream}, type);
}

RONDO_NCCL(ncclResult_t, RedOpCreatePreMulSum)
(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t handle) {
  return on_comm(handle, [&](Comm& comm) { return create_premul(op, scalar, type, residence, comm); });
}

RONDO_NCCL(ncclResult_t, RedOpDestroy)(ncclRedOp_t op, ncclComm_t handle) {
  return on_comm(handle, [op](Comm& comm) -> Status {
    if (op >= 0 && op < ncclNumOps)
      return invalid_argument("op is {}: NCCL's own operators cannot be destroyed", static_cast<int>(op));
    if (comm.operators.erase(op) != 0) return {};
    return invalid_argument("op is {}: not an operator of this communicator, or already destroyed",
                            static_cast<int>(op));
  });
}
