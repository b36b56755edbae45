// Operation: one collective or message of the caller, and its conversion to a call of rondo.
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
  PremulOperator premul;  // for kPremulSum: a copy, because the caller may destroy the operator
  std::optional<CallConfig> config;
  std::string algorithm;  // empty: the planner's choice
};

/// `check`: also checks everything that issue() would refuse. Errors: kInvalidArgument, kUnsupported, the
/// communicator's.
Expected<Operation> prepare(std::shared_ptr<Comm> comm, const Request& request, const ncclCollConfig_t* config,
                            bool check);
/// Runs it, or adds it to rondo's group if one is open.
Status issue(const Operation& operation);
/// The planner's forecast in microseconds. Messages count as 0.
Expected<double> forecast_us(const Operation& operation);

}  // namespace rondo::nccl
