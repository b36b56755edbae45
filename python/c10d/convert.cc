#include "convert.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <optional>

namespace rondo_c10d {
namespace {

std::optional<rondo_dtype> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kChar: return RONDO_INT8;
    case at::kByte: return RONDO_UINT8;
    case at::kInt: return RONDO_INT32;
    case at::kUInt32: return RONDO_UINT32;
    case at::kLong: return RONDO_INT64;
    case at::kUInt64: return RONDO_UINT64;
    case at::kHalf: return RONDO_FLOAT16;
    case at::kFloat: return RONDO_FLOAT32;
    case at::kDouble: return RONDO_FLOAT64;
    case at::kBFloat16: return RONDO_BFLOAT16;
    case at::kFloat8_e4m3fn: return RONDO_FLOAT8_E4M3;
    case at::kFloat8_e5m2: return RONDO_FLOAT8_E5M2;
    default: return std::nullopt;
  }
}

rondo_op op_of(c10d::ReduceOp::RedOpType op) {
  using Op = c10d::ReduceOp;
  switch (op) {
    case Op::SUM: return RONDO_SUM;
    case Op::AVG: return RONDO_AVG;
    case Op::PRODUCT: return RONDO_PROD;
    case Op::MIN: return RONDO_MIN;
    case Op::MAX: return RONDO_MAX;
    case Op::BAND: return RONDO_BAND;
    case Op::BOR: return RONDO_BOR;
    case Op::BXOR: return RONDO_BXOR;
    case Op::PREMUL_SUM: return RONDO_PREMUL_SUM;
    default: return RONDO_SUM;
  }
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  static constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                           "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
  return kNames[std::min<size_t>(op, std::size(kNames) - 1)];
}

template <class T>
void store(T value, std::array<std::byte, 8>* to) {
  std::memcpy(to->data(), &value, sizeof(value));
}

void store_scale(const char* call, int rank, const c10d::ReduceOp& op, Reduction* r) {
  const auto* s = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(s != nullptr, "rank ", rank, ": ", call,
                    ": PREMUL_SUM needs a factor: make the operator with _make_nccl_premul_sum(factor)");
  const double factor = s->tensor_factor.defined() ? s->tensor_factor.item<double>() : s->double_factor;
  r->is_scaled = true;
  switch (r->elements.dtype) {
    case RONDO_FLOAT64: return store(factor, &r->scale);
    case RONDO_INT8: return store(static_cast<int8_t>(factor), &r->scale);
    case RONDO_UINT8: return store(static_cast<uint8_t>(factor), &r->scale);
    case RONDO_INT32: return store(static_cast<int32_t>(factor), &r->scale);
    case RONDO_UINT32: return store(static_cast<uint32_t>(factor), &r->scale);
    case RONDO_INT64: return store(static_cast<int64_t>(factor), &r->scale);
    case RONDO_UINT64: return store(static_cast<uint64_t>(factor), &r->scale);
    default: return store(static_cast<float>(factor), &r->scale);  // the accumulator of all narrow floats
  }
}

rondo_op bool_op(c10d::ReduceOp::RedOpType op, bool* known) {
  using Op = c10d::ReduceOp;
  *known = true;
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR: return RONDO_BOR;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND: return RONDO_BAND;
    case Op::BXOR: return RONDO_BXOR;
    default: *known = false; return RONDO_SUM;
  }
}

}  // namespace

std::exception_ptr exception_of(rondo_status status, const std::string& text) {
  const c10::SourceLocation here{"rondo", __FILE__, __LINE__};
  if (status == RONDO_INVALID_ARGUMENT) return std::make_exception_ptr(c10::ValueError(here, text));
  // rondo's own sentence names the C interface's deadline.
  constexpr const char* kTimeout =
      ". The timeout is that of the call or of its group (init_process_group, set_timeout)";
  return std::make_exception_ptr(c10::DistBackendError(here, status == RONDO_TIMEOUT ? text + kTimeout : text));
}

void check(rondo_status status) {
  if (status != RONDO_OK) [[unlikely]]
    std::rethrow_exception(exception_of(status, rondo_last_error(nullptr)));
}

Elements copied(at::ScalarType type) {
  if (const auto dtype = dtype_of(type)) return {*dtype, 1};
  return {RONDO_UINT8, c10::elementSize(type)};
}

Reduction reduction(const char* call, int rank, at::ScalarType type, const c10d::ReduceOp& op) {
  using Op = c10d::ReduceOp;
  Reduction r{{RONDO_UINT8, 1}, op_of(op.op_)};
  bool known = op.op_ != Op::UNUSED;
  if (const auto dtype = dtype_of(type)) {
    r.elements.dtype = *dtype;
    const bool is_bitwise = op.op_ == Op::BAND || op.op_ == Op::BOR || op.op_ == Op::BXOR;
    known = known && !(is_bitwise && at::isFloatingType(type));
  } else if (type == at::kBool) {
    r.op = bool_op(op.op_, &known);
  } else if (type == at::kComplexFloat || type == at::kComplexDouble) {
    r.elements = {type == at::kComplexFloat ? RONDO_FLOAT32 : RONDO_FLOAT64, 2};
    known = op.op_ == Op::SUM || op.op_ == Op::AVG || op.op_ == Op::PREMUL_SUM;
  } else {
    known = false;
  }
  TORCH_CHECK_TYPE(known, "rank ", rank, ": ", call, ": rondo has no ", name_of(op.op_), " of ", type,
                   ". Convert the tensor to another type, or use another operator (docs/torch.md has the table)");
  if (op.op_ == Op::PREMUL_SUM) store_scale(call, rank, op, &r);
  return r;
}

}  // namespace rondo_c10d
