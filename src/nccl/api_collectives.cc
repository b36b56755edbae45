// Collectives, messages and reduction operators: each entry point fills one Call.
#include <fmt/format.h>

#include <cstring>

#include "nccl/abi.h"
#include "nccl/group.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

ncclResult_t run(ncclComm_t handle, Call call, int dtype, int op = ncclSum, const ncclCollConfig_t* config = nullptr) {
  Group& group = Group::mine();
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(group.fail(comm.status()));
  const std::shared_ptr<Comm>& c = *comm;
  auto pending = prepare(c, std::move(call), dtype, op, config);
  if (group.open() || !c->config.blocking) return report(group.add(std::move(pending)), c.get());
  return report(pending.ok() ? issue(*pending) : pending.status(), c.get());
}

Status create_premul(ncclRedOp_t* op, const void* scalar, int type, int residence, Comm& comm) {
  if (op == nullptr || scalar == nullptr) return null_argument(op == nullptr ? "op" : "scalar");
  RONDO_TRY(comm.usable());
  if (type < 0 || type >= kNumDtypes)
    return bad_argument(fmt::format("datatype is {}, which is not an element type", type));
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return bad_argument(
        fmt::format("residence is {}: expected ncclScalarDevice or ncclScalarHostImmediate", residence));
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
using rondo::Collective;

#define RONDO_NCCL_LIST(...) __VA_ARGS__
// The two forms of a collective. `args`: those before comm and stream. `call`: shape and buffers.
#define RONDO_NCCL_COLLECTIVE(name, args, call, dtype, op)                                     \
  ncclResult_t pnccl##name(RONDO_NCCL_LIST args, ncclComm_t comm, cudaStream_t stream) {       \
    return run(comm, {RONDO_NCCL_LIST call, stream}, dtype, op);                               \
  }                                                                                            \
  ncclResult_t pnccl##name##Config(RONDO_NCCL_LIST args, ncclComm_t comm, cudaStream_t stream, \
                                   const ncclCollConfig_t* config) {                           \
    return run(comm, {RONDO_NCCL_LIST call, stream}, dtype, op, config);                       \
  }                                                                                            \
  RONDO_NCCL_TWIN(name)                                                                        \
  RONDO_NCCL_TWIN(name##Config)

// clang-format off
RONDO_NCCL_COLLECTIVE(AllReduce, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op),
                      ({Collective::kAllReduce, count}, in, out), type, op)
RONDO_NCCL_COLLECTIVE(Reduce, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root),
                      ({Collective::kReduce, count, root}, in, out), type, op)
RONDO_NCCL_COLLECTIVE(Broadcast, (const void* in, void* out, size_t count, ncclDataType_t type, int root),
                      ({Collective::kBroadcast, count, root}, in, out), type, ncclSum)
RONDO_NCCL_COLLECTIVE(AllGather, (const void* in, void* out, size_t count, ncclDataType_t type),
                      ({Collective::kAllGather, count}, in, out), type, ncclSum)
RONDO_NCCL_COLLECTIVE(ReduceScatter, (const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op),
                      ({Collective::kReduceScatter, count}, in, out), type, op)
RONDO_NCCL_COLLECTIVE(AlltoAll, (const void* in, void* out, size_t count, ncclDataType_t type),
                      ({Collective::kAllToAll, count}, in, out), type, ncclSum)
RONDO_NCCL_COLLECTIVE(Gather, (const void* in, void* out, size_t count, ncclDataType_t type, int root),
                      ({Collective::kGather, count, root}, in, out), type, ncclSum)
RONDO_NCCL_COLLECTIVE(Scatter, (const void* in, void* out, size_t count, ncclDataType_t type, int root),
                      ({Collective::kScatter, count, root}, in, out), type, ncclSum)
// clang-format on

ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return run(comm, {{Collective::kBroadcast, count, root}, buffer, buffer, stream}, type);
}
ncclResult_t pncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return run(comm, {{Collective::kSend, count, peer}, buffer, nullptr, stream}, type);
}
ncclResult_t pncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return run(comm, {{Collective::kRecv, count, peer}, nullptr, buffer, stream}, type);
}

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t handle) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(create_premul(op, scalar, type, residence, **comm), comm->get());
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  if (op >= 0 && op < ncclNumOps)
    return report(bad_argument(fmt::format("op is {}: NCCL's own operators cannot be destroyed", static_cast<int>(op))),
                  comm->get());
  if ((*comm)->operators.erase(op) == 0)
    return report(bad_argument(fmt::format("op is {}: not an operator of this communicator, or already destroyed",
                                           static_cast<int>(op))),
                  comm->get());
  return ncclSuccess;
}

RONDO_NCCL_TWIN(Bcast)
RONDO_NCCL_TWIN(Send)
RONDO_NCCL_TWIN(Recv)
RONDO_NCCL_TWIN(RedOpCreatePreMulSum)
RONDO_NCCL_TWIN(RedOpDestroy)
