#include "nccl/operation.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "kernels/float_formats.h"
#include "nccl/memory.h"
#include "nccl/result.h"

namespace rondo::nccl {
namespace {

// NCCL passes the scale in the call's type, rondo in the type of the sums.
void widen_scale(Dtype dtype, const void* from, std::byte (&to)[8]) {
  const auto widened = [&](const FloatFormat& format, size_t bytes) {
    uint32_t code = 0;
    std::memcpy(&code, from, bytes);  // little-endian, like every supported host
    const float value = float_formats_internal::widen(code, format);
    std::memcpy(to, &value, sizeof value);
  };
  switch (dtype) {
    case Dtype::kFloat16: return widened(kFormatFp16, 2);
    case Dtype::kBfloat16: return widened(kFormatBf16, 2);
    case Dtype::kFloat8E4m3: return widened(kFormatE4m3, 1);
    case Dtype::kFloat8E5m2: return widened(kFormatE5m2, 1);
    default: std::memcpy(to, from, dtype_bytes(dtype));
  }
}

Dtype dtype_of(const Operation& o) { return static_cast<Dtype>(o.request.dtype); }

// The options of one call and their storage.
struct FilledOptions {
  CallOptions options;
  TypeRow row;
  alignas(8) std::byte scale[8] = {};

  FilledOptions(const Operation& o, bool check_only) {
    const Dtype dtype = dtype_of(o);
    if (o.op == Op::kPremulSum) {
      // A scale in device memory is read only when the operation runs.
      const bool on_device = o.premul.later != nullptr && place_of(*o.comm) == Memory::kCuda;
      if (o.premul.later == nullptr) widen_scale(dtype, o.premul.now, scale);
      else if (!check_only && !on_device) widen_scale(dtype, o.premul.later, scale);
      options.premul = on_device ? o.premul.later : scale;
      options.premul_on_device = on_device;
    }
    if (o.config) {
      options.promises = o.config->promises;
      options.tag = o.config->tag;
      options.min_blocks = o.config->min_blocks;
      options.max_blocks = o.config->max_blocks;
      options.launch_event = o.config->launch_event;
      if (o.config->accumulator) {
        row = uniform_row(dtype);
        row.accumulator = *o.config->accumulator;
        options.row = &row;
      }
    }
    if (!o.algorithm.empty()) options.algorithm = o.algorithm.c_str();
    options.check_only = check_only;
    add_stream(*o.comm, o.request.stream, &options);
  }
  FilledOptions(const FilledOptions&) = delete;
};

Status call(const Operation& o, const CallOptions& options) {
  Communicator& c = *o.comm->inner();
  const Request& r = o.request;
  const Dtype dtype = dtype_of(o);
  switch (r.collective) {
    case Collective::kAllReduce: return c.all_reduce(r.in, r.out, r.count_elems, dtype, o.op, &options);
    case Collective::kReduceScatter: return c.reduce_scatter(r.in, r.out, r.count_elems, dtype, o.op, &options);
    case Collective::kAllGather: return c.all_gather(r.in, r.out, r.count_elems, dtype, &options);
    case Collective::kBroadcast: return c.broadcast(r.in, r.out, r.count_elems, dtype, r.root, &options);
    case Collective::kReduce: return c.reduce(r.in, r.out, r.count_elems, dtype, o.op, r.root, &options);
    case Collective::kAllToAll: return c.all_to_all(r.in, r.out, r.count_elems, dtype, &options);
    case Collective::kGather: return c.gather(r.in, r.out, r.count_elems, dtype, r.root, &options);
    case Collective::kScatter: return c.scatter(r.in, r.out, r.count_elems, dtype, r.root, &options);
    case Collective::kSend: return c.send(r.in, r.count_elems, dtype, r.root, &options);
    case Collective::kRecv: return c.recv(r.out, r.count_elems, dtype, r.root, &options);
    case Collective::kBarrier: break;  // NCCL has none
  }
  return Status(StatusCode::kInternal, "no such collective");
}

// Accepts a built-in operator or one of this communicator's own.
Status take_operator(Operation* o) {
  const int op = o->request.op;
  if (op >= 0 && op < ncclNumOps) {
    o->op = static_cast<Op>(op);
    return {};
  }
  const auto at = o->comm->operators.find(op);
  if (at == o->comm->operators.end())
    return bad_argument(
        fmt::format("op is {}: neither an operator of NCCL nor a live operator of this communicator", op));
  if (at->second.dtype != dtype_of(*o))
    return bad_argument(fmt::format("op was created for {}, but the call uses {}", dtype_name(at->second.dtype),
                                    dtype_name(dtype_of(*o))));
  o->op = Op::kPremulSum;
  o->premul = at->second;
  return {};
}

// Adds the vendor option to errors about promises and accumulation types: rondo's own text does not mention it.
Status named(const Operation& o, Status s) {
  if (s.code() != StatusCode::kUnsupported || !o.config || (!o.config->accumulator && o.config->promises == 0))
    return s;
  return Status(s.code(), fmt::format("config.ext requires a promise that rondo cannot keep here: {}", s.message()));
}

}  // namespace

Expected<Operation> prepare(std::shared_ptr<Comm> comm, const Request& request, const ncclCollConfig_t* config,
                            bool check) {
  Operation o{std::move(comm), request, Op::kSum, {}, {}, {}};
  if (config != nullptr) {
    RONDO_TRY_ASSIGN(o.config, read_call_config(*config));
  }
  RONDO_TRY(o.comm->usable());
  if (request.dtype < 0 || request.dtype >= kNumDtypes)
    return bad_argument(fmt::format("datatype is {}, which is no element type", request.dtype));
  if (place_of(*o.comm) == Memory::kHost) {
    if (o.config && o.config->launch_event != nullptr)
      return bad_usage(
          "config.launchCompletionEvent is set, but a call on host memory launches no kernel: leave it NULL; the call "
          "is complete when it (or its group) returns");
    RONDO_TRY(check_place(request.in, "sendbuff"));
    RONDO_TRY(check_place(request.out, "recvbuff"));
  }
  if (collective_reduces(request.collective)) RONDO_TRY(take_operator(&o));
  if (!check && !o.config && request.count_elems != 0) [[likely]]
    return o;  // issue() follows at once
  const FilledOptions filled(o, true);
  if (o.config) {
    RONDO_TRY_ASSIGN(o.algorithm, choose_algorithm(*o.comm->inner(), *o.config, request.collective, request.count_elems,
                                                   dtype_of(o), o.op, request.root, filled.options));
    if (o.config->accumulator || o.config->promises != 0) {  // refuse impossible promises here, not in the group
      auto us = o.comm->inner()->forecast_us(request.collective, request.count_elems, dtype_of(o), o.op, request.root,
                                             &filled.options);
      if (us.status().code() == StatusCode::kUnsupported) return named(o, us.status());
    }
  }
  RONDO_TRY(named(o, call(o, filled.options)));
  return o;
}

Status issue(const Operation& o) {
  // As in NCCL, collectives without elements do nothing. Ranks need not agree on them.
  if (o.request.count_elems == 0) return {};
  const FilledOptions filled(o, false);
  return named(o, call(o, filled.options));
}

Expected<double> forecast_us(const Operation& o) {
  if (is_point_to_point(o.request.collective) || o.request.count_elems == 0) return 0.0;
  const FilledOptions filled(o, true);
  return o.comm->inner()->forecast_us(o.request.collective, o.request.count_elems, dtype_of(o), o.op, o.request.root,
                                      &filled.options);
}

}  // namespace rondo::nccl
