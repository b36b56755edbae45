// THE tables of element types, reduction operators and type rows. Everything else (names, sizes, kernels, tests, the
// command line, the C constants) is generated from or checked against them: a new dtype or op is one row here and one
// functor in src/kernels.
//
// Host and device: plain constexpr data, no dependency.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rondo {

using Rank = int32_t;

// X(enumerator, value, name, bytes, accumulator): values equal ncclDataType_t's, so handles convert by cast.
// 8- and 16-bit floats are summed and multiplied in fp32 and rounded once per instruction.
#define RONDO_DTYPES(X)                         \
  X(kInt8, 0, "int8", 1, kInt8)                 \
  X(kUint8, 1, "uint8", 1, kUint8)              \
  X(kInt32, 2, "int32", 4, kInt32)              \
  X(kUint32, 3, "uint32", 4, kUint32)           \
  X(kInt64, 4, "int64", 8, kInt64)              \
  X(kUint64, 5, "uint64", 8, kUint64)           \
  X(kFloat16, 6, "half", 2, kFloat32)           \
  X(kFloat32, 7, "float", 4, kFloat32)          \
  X(kFloat64, 8, "double", 8, kFloat64)         \
  X(kBfloat16, 9, "bfloat16", 2, kFloat32)      \
  X(kFloat8E4m3, 10, "fp8_e4m3", 1, kFloat32)   \
  X(kFloat8E5m2, 11, "fp8_e5m2", 1, kFloat32)

enum class Dtype : uint8_t {
#define RONDO_X(e, v, name, bytes, acc) e = v,
  RONDO_DTYPES(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumDtypes = 0 RONDO_DTYPES(RONDO_X);
#undef RONDO_X

// X(enumerator, value, name): values equal ncclRedOp_t's. Integer sums and products wrap. avg divides the sum by the
// number of ranks once, in the accumulation type, at the instruction that completes it (integers truncate toward
// zero). min and max propagate NaN (IEEE 754-2019 minimum and maximum: NaN in, NaN out; -0 < +0): a NaN in a gradient
// must not vanish. premul_sum scales each rank's own input by that rank's scalar before it is added.
#define RONDO_OPS(X)        \
  X(kSum, 0, "sum")         \
  X(kProd, 1, "prod")       \
  X(kMax, 2, "max")         \
  X(kMin, 3, "min")         \
  X(kAvg, 4, "avg")         \
  X(kPremulSum, 5, "mulsum")

enum class Op : uint8_t {
#define RONDO_X(e, v, name) e = v,
  RONDO_OPS(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumOps = 0 RONDO_OPS(RONDO_X);
#undef RONDO_X

// X(enumerator, value, name, reduces). Rows grow with the library; values are part of the C ABI.
#define RONDO_COLLECTIVES(X)                          \
  X(kAllReduce, 0, "all_reduce", true)                \
  X(kReduceScatter, 1, "reduce_scatter", true)        \
  X(kAllGather, 2, "all_gather", false)

enum class Collective : uint8_t {
#define RONDO_X(e, v, name, reduces) e = v,
  RONDO_COLLECTIVES(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumCollectives = 0 RONDO_COLLECTIVES(RONDO_X);
#undef RONDO_X

constexpr uint32_t dtype_bytes(Dtype t) {
  constexpr uint8_t kBytes[] = {
#define RONDO_X(e, v, name, bytes, acc) bytes,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kBytes[static_cast<int>(t)];
}
/// The type in which sums and products of `t` are formed.
constexpr Dtype accumulator_of(Dtype t) {
  constexpr Dtype kAcc[] = {
#define RONDO_X(e, v, name, bytes, acc) Dtype::acc,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kAcc[static_cast<int>(t)];
}
constexpr std::string_view dtype_name(Dtype t) {
  constexpr std::string_view kNames[] = {
#define RONDO_X(e, v, name, bytes, acc) name,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kNames[static_cast<int>(t)];
}
constexpr std::string_view op_name(Op op) {
  constexpr std::string_view kNames[] = {
#define RONDO_X(e, v, name) name,
      RONDO_OPS(RONDO_X)
#undef RONDO_X
  };
  return kNames[static_cast<int>(op)];
}
constexpr std::string_view collective_name(Collective c) {
  constexpr std::string_view kNames[] = {
#define RONDO_X(e, v, name, reduces) name,
      RONDO_COLLECTIVES(RONDO_X)
#undef RONDO_X
  };
  return kNames[static_cast<int>(c)];
}
constexpr bool collective_reduces(Collective c) {
  constexpr bool kReduces[] = {
#define RONDO_X(e, v, name, reduces) reduces,
      RONDO_COLLECTIVES(RONDO_X)
#undef RONDO_X
  };
  return kReduces[static_cast<int>(c)];
}
/// Inverse of the name functions; nothing when the name is unknown.
constexpr std::optional<Dtype> dtype_from_name(std::string_view s) {
  for (int i = 0; i < kNumDtypes; ++i)
    if (dtype_name(static_cast<Dtype>(i)) == s) return static_cast<Dtype>(i);
  return std::nullopt;
}
constexpr std::optional<Op> op_from_name(std::string_view s) {
  for (int i = 0; i < kNumOps; ++i)
    if (op_name(static_cast<Op>(i)) == s) return static_cast<Op>(i);
  return std::nullopt;
}
constexpr std::optional<Collective> collective_from_name(std::string_view s) {
  for (int i = 0; i < kNumCollectives; ++i)
    if (collective_name(static_cast<Collective>(i)) == s) return static_cast<Collective>(i);
  return std::nullopt;
}

/// The four types of one call: of the caller's input, of what travels, of the additions, of the caller's output.
struct TypeRow {
  Dtype input;
  Dtype wire;
  Dtype accumulator;
  Dtype output;
  friend constexpr bool operator==(const TypeRow&, const TypeRow&) = default;
};
/// The row of a call that names one type only.
constexpr TypeRow uniform_row(Dtype t) { return {t, t, accumulator_of(t), t}; }
/// True when rondo carries this row. Today: the uniform rows; every other row is refused by name.
constexpr bool row_supported(const TypeRow& row) { return row == uniform_row(row.input); }

}  // namespace rondo
