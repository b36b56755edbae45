// Conversions between torch's types and those of rondo's C ABI: element types, operators, times and errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "rondo/rondo.h"

namespace rondo_c10d {

/// Throws if a call of rondo has failed: ValueError for a bad argument, DistBackendError for anything else. The text is
/// rondo's sentence.
void check(rondo_status status);
/// Returns the exception of a call that ended with this status (not RONDO_OK) and sentence.
std::exception_ptr exception_of(rondo_status status, const std::string& text);

/// How rondo's calls count the elements of a tensor.
struct Elements {
  rondo_dtype dtype;
  uint64_t per_element;  // elements of `dtype` in one element of the tensor

  uint64_t of(const at::Tensor& t) const { return static_cast<uint64_t>(t.numel()) * per_element; }
};

/// For calls that only copy: every type has a form, if need be as bytes.
Elements copied(at::ScalarType type);

/// For calls that reduce.
struct Reduction {
  Elements elements;
  rondo_op op;
  bool is_scaled = false;                       // PREMUL_SUM
  alignas(8) std::array<std::byte, 8> scale{};  // one element of the accumulator's type
};

/// Returns how rondo reduces tensors of a type with torch's operator. bool: SUM and MAX are "or", PRODUCT and MIN are
/// "and". Complex numbers: SUM, AVG and PREMUL_SUM. `call` names the call in errors. Errors: TypeError for a type or an
/// operator that has no such reduction.
Reduction reduction(const char* call, int rank, at::ScalarType type, const c10d::ReduceOp& op);

/// Returns seconds; torch's "unset" and "none" (not positive) become `otherwise`.
inline double seconds(std::chrono::milliseconds t, double otherwise) {
  return t.count() > 0 ? static_cast<double>(t.count()) / 1e3 : otherwise;
}

}  // namespace rondo_c10d
