#include "nccl/operation.h"

#include <cstring>
#include <optional>
#include <vector>

#include "kernels/float_formats.h"
#include "nccl/call_config.h"
#include "nccl/memory.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

// NCCL passes the scale in the call's type, rondo in the type of the sums.
void widen_scale(Dtype dtype, const void* from, std::byte (&to)[8]) {
  if (!is_narrow_float(dtype)) {
    std::memcpy(to, from, dtype_bytes(dtype));
    return;
  }
  uint32_t code = 0;
  std::memcpy(&code, from, dtype_bytes(dtype));  // little-endian, like every supported host
  const float value = value_of_code(code, dtype);
  std::memcpy(to, &value, sizeof value);
}

// Accepts a built-in operator or one of this communicator's own.
Status take_operator(int op, PendingCall* pending) {
  Call& call = pending->call;
  if (op >= 0 && op < ncclNumOps) {
    call.shape.op = static_cast<Op>(op);
    return {};
  }
  const auto at = pending->comm->operators.find(op);
  if (at == pending->comm->operators.end())
    return invalid_argument("op is {}: neither an operator of NCCL nor a live operator of this communicator", op);
  const PremulOperator& own = at->second;
  if (own.dtype != call.shape.dtype)
    return invalid_argument("op was created for {}, but the call uses {}", dtype_name(own.dtype),
                            dtype_name(call.shape.dtype));
  call.shape.op = Op::kPremulSum;
  // A scale in device memory is read only when the operation runs.
  if (own.later == nullptr) widen_scale(own.dtype, own.now, call.premul);
  else if (pending->comm->memory == Memory::kCuda) call.premul_at = own.later;
  else pending->scale = own.later;
  return {};
}

Status take_config(CommunicatorImpl& impl, const CallConfig& config, Call& call) {
  CallShape& s = call.shape;
  s.promises = config.promises;
  s.min_blocks = static_cast<uint16_t>(config.min_blocks);
  s.max_blocks = static_cast<uint16_t>(config.max_blocks);
  call.tag = config.tag;
  call.launch_event = config.launch_event;
  if (!config.accumulator) return {};
  TypeRow row = uniform_row(s.dtype);
  row.accumulator = *config.accumulator;
  return impl.read_types(row, s);
}

// Impossible promises are refused here, not in the group.
Status check_with(CommunicatorImpl& impl, const CallConfig& config, Call& call) {
  const auto checked = [&]() -> Status {
    RONDO_TRY(take_config(impl, config, call));
    RONDO_TRY(impl.check(call));
    RONDO_TRY_ASSIGN(call.shape.algorithm, choose_algorithm(impl, config, call.shape));
    if (!config.accumulator && config.promises == 0) return {};
    const Status planned = impl.forecast_us(call.shape).status();
    return planned.code() == StatusCode::kUnsupported ? planned : Status();
  }();
  // Errors about promises and accumulation types name the vendor option: rondo's own text does not mention it.
  if (checked.code() != StatusCode::kUnsupported || (!config.accumulator && config.promises == 0)) return checked;
  return make_error(checked.code(), "config.ext requires a promise that rondo cannot keep here: {}", checked.message());
}

// As in NCCL, collectives without elements do nothing. Ranks need not agree on them.
bool ready_to_run(PendingCall& p) {
  if (p.scale != nullptr) widen_scale(p.call.shape.dtype, p.scale, p.call.premul);
  return p.call.shape.count_elems != 0;
}

}  // namespace

Expected<PendingCall> prepare(std::shared_ptr<Comm> comm, Call call, int dtype, int op,
                              const ncclCollConfig_t* config) {
  std::optional<CallConfig> own;
  if (config != nullptr) {
    RONDO_TRY_ASSIGN(own, read_call_config(*config));
  }
  RONDO_TRY(comm->usable());
  if (dtype < 0 || dtype >= kNumDtypes) return invalid_argument("datatype is {}, which is not an element type", dtype);
  PendingCall p{std::move(comm), std::move(call)};
  p.call.shape.dtype = static_cast<Dtype>(dtype);
  if (p.comm->memory == Memory::kHost) {
    p.call.stream = nullptr;
    if (own && own->launch_event != nullptr)
      return unsupported(
          "config.launchCompletionEvent is set, but a call on host memory launches no kernel: leave it NULL; the call "
          "is complete when it (or its group) returns");
    RONDO_TRY(check_place(p.call.in, "sendbuff"));
    RONDO_TRY(check_place(p.call.out, "recvbuff"));
  }
  if (collective_reduces(p.call.shape.collective)) RONDO_TRY(take_operator(op, &p));
  CommunicatorImpl& impl = impl_of(*p.comm->inner());
  RONDO_TRY(own ? check_with(impl, *own, p.call) : impl.check(p.call));
  return p;
}

Status issue(PendingCall& p) { return ready_to_run(p) ? p.call.backend->submit(std::span(&p.call, 1)) : Status(); }

Status issue(std::span<PendingCall> pending) {
  std::vector<Call> batch;
  for (PendingCall& p : pending)
    if (ready_to_run(p)) batch.push_back(std::move(p.call));
  return run_batch(std::move(batch));
}

Expected<double> forecast_us(const PendingCall& p) {
  if (is_point_to_point(p.call.shape.collective) || p.call.shape.count_elems == 0) return 0.0;
  return impl_of(*p.comm->inner()).forecast_us(p.call.shape);
}

}  // namespace rondo::nccl
