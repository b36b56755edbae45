// Operation: one collective or message as the caller gave it, and how it becomes a call of rondo's.
//
// Thread safety: values; issue() belongs to the thread that runs the group.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nccl/abi.h"
#include "nccl/call_config.h"
#include "nccl/comm.h"
#include "rondo/communicator.h"

namespace rondo::nccl {

/// A call's arguments, not yet checked.
struct Request {
  Collective collective;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count_elems = 0;
  int dtype = 0;
  int op = ncclSum;
  Rank root = 0;  // send, recv: the peer
  cudaStream_t stream = nullptr;
};

struct Operation {
  std::shared_ptr<Comm> comm;
  Request request;
  Op op = Op::kSum;
  PremulOperator premul;  // op kPremulSum: a copy, since the caller may destroy its operator at once
  std::optional<CallConfig> config;
  std::string algorithm;  // empty: the planner's choice
};

/// `check`: also everything that issue() would find wrong with the arguments. Errors: kInvalidArgument, kUnsupported,
/// the communicator's.
Expected<Operation> prepare(std::shared_ptr<Comm> comm, const Request& request, const ncclCollConfig_t* config,
                            bool check);
/// Runs it; inside of rondo's group it is added to that.
Status issue(const Operation& operation);
/// What the planner expects, in microseconds; messages count as nothing.
Expected<double> forecast_us(const Operation& operation);

}  // namespace rondo::nccl
