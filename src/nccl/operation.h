// One collective or message of the caller, and its conversion to a call of rondo.
// Thread safety: values; issue() belongs to the thread that runs the group.
#pragma once

#include <memory>

#include "api/communicator_impl.h"
#include "nccl/abi.h"
#include "nccl/comm.h"

namespace rondo::nccl {

struct PendingCall {
  std::shared_ptr<Comm> comm;
  Call call;                    // checked
  const void* scale = nullptr;  // in host memory, of the call's type; read when the call is issued
};

/// Completes and checks a call whose other arguments are given. `op`: NCCL's number of it. Errors: kInvalidArgument,
/// kUnsupported, the communicator's.
Expected<PendingCall> prepare(std::shared_ptr<Comm> comm, Call call, int dtype, int op, const ncclCollConfig_t* config);
/// Runs it.
Status issue(PendingCall& pending);
/// Runs them as one batch.
Status issue(std::span<PendingCall> pending);
/// The planner's forecast in microseconds. Messages count as 0.
Expected<double> forecast_us(const PendingCall& pending);

}  // namespace rondo::nccl
