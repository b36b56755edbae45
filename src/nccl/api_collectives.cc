// Collectives, messages and reduction operators: each entry point builds one Request.
#include <fmt/format.h>

#include <cstring>

#include "nccl/abi.h"
#include "nccl/group.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

ncclResult_t run(ncclComm_t handle, const Request& request, const ncclCollConfig_t* config = nullptr) {
  Group& group = Group::mine();
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(group.fail(comm.status()));
  const std::shared_ptr<Comm>& c = *comm;
  if (group.open() || !c->config.blocking) return report(group.add(prepare(c, request, config, true)), c.get());
  auto operation = prepare(c, request, config, false);
  return report(operation.ok() ? issue(*operation) : operation.status(), c.get());
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

ncclResult_t pncclAllReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kAllReduce, in, out, count, type, op, 0, stream}, config);
}
ncclResult_t pncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {Collective::kAllReduce, in, out, count, type, op, 0, stream});
}

ncclResult_t pncclReduceConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kReduce, in, out, count, type, op, root, stream}, config);
}
ncclResult_t pncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {Collective::kReduce, in, out, count, type, op, root, stream});
}

ncclResult_t pncclBroadcastConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kBroadcast, in, out, count, type, ncclSum, root, stream}, config);
}
ncclResult_t pncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return run(comm, {Collective::kBroadcast, in, out, count, type, ncclSum, root, stream});
}
ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return run(comm, {Collective::kBroadcast, buffer, buffer, count, type, ncclSum, root, stream});
}

ncclResult_t pncclAllGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kAllGather, in, out, count, type, ncclSum, 0, stream}, config);
}
ncclResult_t pncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return run(comm, {Collective::kAllGather, in, out, count, type, ncclSum, 0, stream});
}

ncclResult_t pncclReduceScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kReduceScatter, in, out, count, type, op, 0, stream}, config);
}
ncclResult_t pncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return run(comm, {Collective::kReduceScatter, in, out, count, type, op, 0, stream});
}

ncclResult_t pncclAlltoAllConfig(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kAllToAll, in, out, count, type, ncclSum, 0, stream}, config);
}
ncclResult_t pncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return run(comm, {Collective::kAllToAll, in, out, count, type, ncclSum, 0, stream});
}

ncclResult_t pncclGatherConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kGather, in, out, count, type, ncclSum, root, stream}, config);
}
ncclResult_t pncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return run(comm, {Collective::kGather, in, out, count, type, ncclSum, root, stream});
}

ncclResult_t pncclScatterConfig(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t* config) {
  return run(comm, {Collective::kScatter, in, out, count, type, ncclSum, root, stream}, config);
}
ncclResult_t pncclScatter(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return run(comm, {Collective::kScatter, in, out, count, type, ncclSum, root, stream});
}

ncclResult_t pncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return run(comm, {Collective::kSend, buffer, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t pncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return run(comm, {Collective::kRecv, nullptr, buffer, count, type, ncclSum, peer, stream});
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

RONDO_NCCL_TWIN(AllReduce)
RONDO_NCCL_TWIN(Reduce)
RONDO_NCCL_TWIN(Bcast)
RONDO_NCCL_TWIN(Broadcast)
RONDO_NCCL_TWIN(AllGather)
RONDO_NCCL_TWIN(ReduceScatter)
RONDO_NCCL_TWIN(AlltoAll)
RONDO_NCCL_TWIN(Gather)
RONDO_NCCL_TWIN(Scatter)
RONDO_NCCL_TWIN(Send)
RONDO_NCCL_TWIN(Recv)
RONDO_NCCL_TWIN(AllReduceConfig)
RONDO_NCCL_TWIN(ReduceConfig)
RONDO_NCCL_TWIN(BroadcastConfig)
RONDO_NCCL_TWIN(AllGatherConfig)
RONDO_NCCL_TWIN(ReduceScatterConfig)
RONDO_NCCL_TWIN(AlltoAllConfig)
RONDO_NCCL_TWIN(GatherConfig)
RONDO_NCCL_TWIN(ScatterConfig)
RONDO_NCCL_TWIN(RedOpCreatePreMulSum)
RONDO_NCCL_TWIN(RedOpDestroy)
