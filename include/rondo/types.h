// The tables of element types, reduction operators, collectives and type rows. Names and sizes are generated from them.
// The kernel tables, the tests and the command line iterate over them. CONTRIBUTING.md (recipe 3) lists what a new
// element type or operator needs.
//
// Host and device: plain constexpr data, no dependency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rondo {

using Rank = int32_t;

/// The numbers that an element type holds.
enum class NumberKind : uint8_t { kSigned, kUnsigned, kFloat };

// X(enumerator, value, name, bytes, accumulator, kind). The values are those of ncclDataType_t, so a cast converts
// them. Floats of 8 and 16 bits are added and multiplied in fp32, and rounded once per instruction. Their formats are
// in src/kernels/float_formats.h.
#define RONDO_DTYPES(X)                               \
  X(kInt8, 0, "int8", 1, kInt8, kSigned)              \
  X(kUint8, 1, "uint8", 1, kUint8, kUnsigned)         \
  X(kInt32, 2, "int32", 4, kInt32, kSigned)           \
  X(kUint32, 3, "uint32", 4, kUint32, kUnsigned)      \
  X(kInt64, 4, "int64", 8, kInt64, kSigned)           \
  X(kUint64, 5, "uint64", 8, kUint64, kUnsigned)      \
  X(kFloat16, 6, "half", 2, kFloat32, kFloat)         \
  X(kFloat32, 7, "float", 4, kFloat32, kFloat)        \
  X(kFloat64, 8, "double", 8, kFloat64, kFloat)       \
  X(kBfloat16, 9, "bfloat16", 2, kFloat32, kFloat)    \
  X(kFloat8E4m3, 10, "fp8_e4m3", 1, kFloat32, kFloat) \
  X(kFloat8E5m2, 11, "fp8_e5m2", 1, kFloat32, kFloat)

enum class Dtype : uint8_t {
#define RONDO_X(e, v, name, bytes, acc, kind) e = v,
  RONDO_DTYPES(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumDtypes = 0 RONDO_DTYPES(RONDO_X);
#undef RONDO_X

// X(enumerator, value, name). The values up to kPremulSum are those of ncclRedOp_t. Integer sums and products wrap. avg
// divides the sum by the number of ranks once, in the accumulator type, at the instruction that completes the sum
// (integers truncate toward zero). min and max propagate NaN, because a NaN in a gradient must not vanish (IEEE
// 754-2019 minimum and maximum; -0 < +0). premul_sum scales each rank's input by that rank's scalar before the
// addition. The last three combine the bits of integers, in host memory only.
#define RONDO_OPS(X)         \
  X(kSum, 0, "sum")          \
  X(kProd, 1, "prod")        \
  X(kMax, 2, "max")          \
  X(kMin, 3, "min")          \
  X(kAvg, 4, "avg")          \
  X(kPremulSum, 5, "mulsum") \
  X(kBitAnd, 6, "band")      \
  X(kBitOr, 7, "bor")        \
  X(kBitXor, 8, "bxor")

enum class Op : uint8_t {
#define RONDO_X(e, v, name) e = v,
  RONDO_OPS(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumOps = 0 RONDO_OPS(RONDO_X);
#undef RONDO_X
/// The operators before the bitwise ones: for every type, in any memory.
inline constexpr int kNumArithmeticOps = static_cast<int>(Op::kBitAnd);
constexpr bool is_bitwise(Op op) { return static_cast<int>(op) >= kNumArithmeticOps; }

/// The ranks that pass a buffer to a collective.
enum class Holders : uint8_t { kNobody, kRoot, kEverybody };
/// The size of such a buffer: the call's count once, or once for each rank (part r belongs to rank r).
enum class Parts : uint8_t { kOne, kEach };

// X(enumerator, value, name, reduces, in: holders, parts, out: holders, parts). The values are part of the C ABI. send
// and recv are the two ends of one message between two ranks. Their "root" is the peer.
#define RONDO_COLLECTIVES(X)                                                             \
  X(kAllReduce, 0, "all_reduce", true, kEverybody, kOne, kEverybody, kOne)               \
  X(kReduceScatter, 1, "reduce_scatter", true, kEverybody, kEach, kEverybody, kOne)      \
  X(kAllGather, 2, "all_gather", false, kEverybody, kOne, kEverybody, kEach)             \
  X(kBroadcast, 3, "broadcast", false, kRoot, kOne, kEverybody, kOne)                    \
  X(kReduce, 4, "reduce", true, kEverybody, kOne, kRoot, kOne)                           \
  X(kAllToAll, 5, "all_to_all", false, kEverybody, kEach, kEverybody, kEach)             \
  X(kGather, 6, "gather", false, kEverybody, kOne, kRoot, kEach)                         \
  X(kScatter, 7, "scatter", false, kRoot, kEach, kEverybody, kOne)                       \
  X(kBarrier, 8, "barrier", false, kNobody, kOne, kNobody, kOne)                         \
  X(kSend, 9, "send", false, kEverybody, kOne, kNobody, kOne)                            \
  X(kRecv, 10, "recv", false, kNobody, kOne, kEverybody, kOne)

enum class Collective : uint8_t {
#define RONDO_X(e, v, ...) e = v,
  RONDO_COLLECTIVES(RONDO_X)
#undef RONDO_X
};
#define RONDO_X(...) +1
inline constexpr int kNumCollectives = 0 RONDO_COLLECTIVES(RONDO_X);
#undef RONDO_X

constexpr uint32_t dtype_bytes(Dtype t) {
  constexpr uint8_t kBytes[] = {
#define RONDO_X(e, v, name, bytes, acc, kind) bytes,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kBytes[static_cast<int>(t)];
}
/// Returns the accumulator type of sums and products of `t`.
constexpr Dtype accumulator_of(Dtype t) {
  constexpr Dtype kAcc[] = {
#define RONDO_X(e, v, name, bytes, acc, kind) Dtype::acc,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kAcc[static_cast<int>(t)];
}
/// Returns whether values of `t` are signed integers, unsigned integers or floats.
constexpr NumberKind number_kind(Dtype t) {
  constexpr NumberKind kKinds[] = {
#define RONDO_X(e, v, name, bytes, acc, kind) NumberKind::kind,
      RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  };
  return kKinds[static_cast<int>(t)];
}
constexpr bool is_float(Dtype t) { return number_kind(t) == NumberKind::kFloat; }
/// Returns true if values of `t` can be combined by `op`.
constexpr bool op_combines(Op op, Dtype t) { return !is_bitwise(op) || !is_float(t); }
constexpr bool is_signed(Dtype t) { return number_kind(t) != NumberKind::kUnsigned; }
/// Returns true for floats of 8 and 16 bits.
constexpr bool is_narrow_float(Dtype t) { return is_float(t) && dtype_bytes(t) < 4; }
constexpr std::string_view dtype_name(Dtype t) {
  constexpr std::string_view kNames[] = {
#define RONDO_X(e, v, name, bytes, acc, kind) name,
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
/// A row of RONDO_COLLECTIVES.
struct CollectiveTraits {
  std::string_view name;
  bool reduces;
  Holders in_holders;
  Parts in_parts;
  Holders out_holders;
  Parts out_parts;
};
inline constexpr CollectiveTraits kCollectiveTraits[] = {
#define RONDO_X(e, v, name, reduces, ih, ip, oh, op) \
  {name, reduces, Holders::ih, Parts::ip, Holders::oh, Parts::op},
    RONDO_COLLECTIVES(RONDO_X)
#undef RONDO_X
};
constexpr const CollectiveTraits& collective_traits(Collective c) { return kCollectiveTraits[static_cast<int>(c)]; }
constexpr std::string_view collective_name(Collective c) { return collective_traits(c).name; }
constexpr bool collective_reduces(Collective c) { return collective_traits(c).reduces; }
/// Returns true if one rank, the root, gives or gets data that the others do not.
constexpr bool collective_is_rooted(Collective c) {
  return collective_traits(c).in_holders == Holders::kRoot || collective_traits(c).out_holders == Holders::kRoot;
}
/// Returns true for send and recv, which only two ranks call.
constexpr bool is_point_to_point(Collective c) { return c == Collective::kSend || c == Collective::kRecv; }
/// Returns the number of parts of a buffer. Each part has the call's count of elements.
constexpr uint64_t parts(Parts p, int nranks) { return p == Parts::kEach ? static_cast<uint64_t>(nranks) : 1; }
/// Returns the elements of S, the larger of the two buffers, which algorithms divide into chunks.
constexpr uint64_t whole_elems(Collective c, uint64_t count_elems, int nranks) {
  const CollectiveTraits& t = collective_traits(c);
  return count_elems * parts(t.in_parts == Parts::kEach ? t.in_parts : t.out_parts, nranks);
}
/// Inverse functions of the names. They return nothing for an unknown name.
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

/// The four types of one call: the caller's input, the data on the wire, the additions, the caller's output.
struct TypeRow {
  Dtype input;
  Dtype wire;
  Dtype accumulator;
  Dtype output;
  friend constexpr bool operator==(const TypeRow&, const TypeRow&) = default;
};
/// Returns the row of a call that names only one type.
constexpr TypeRow uniform_row(Dtype t) { return {t, t, accumulator_of(t), t}; }

namespace detail {
// The types of mixed rows, in the order that row_index numbers them.
inline constexpr Dtype kMixedEnds[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16};
inline constexpr Dtype kMixedWires[] = {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat8E4m3,
                                        Dtype::kFloat8E5m2};
template <size_t kSize>
constexpr int position(const Dtype (&list)[kSize], Dtype t) {
  for (size_t i = 0; i < kSize; ++i)
    if (list[i] == t) return static_cast<int>(i);
  return -1;
}
}  // namespace detail

/// Returns the number of a supported row: 0 for a uniform row, 1 .. 45 for a mixed one, nothing for other rows. In a
/// mixed row, input and output are float, bfloat16 or half. The wire is one of these or fp8. The accumulator is fp32.
///
/// Mixed rows round in these places (docs/types.md). Every operand is rounded to the wire type, the rank's own as if it
/// were sent. Partial sums are rounded when they are sent. If several ranks get a result, it is rounded to the wire
/// type, so that all have the same bits. The result of reduce_scatter and reduce is rounded once, from the accumulator.
constexpr std::optional<uint8_t> row_index(const TypeRow& row) {
  if (row == uniform_row(row.input)) return 0;
  const int in = detail::position(detail::kMixedEnds, row.input), wire = detail::position(detail::kMixedWires, row.wire),
            out = detail::position(detail::kMixedEnds, row.output);
  if (in < 0 || wire < 0 || out < 0 || row.accumulator != Dtype::kFloat32) return std::nullopt;
  return static_cast<uint8_t>(1 + (in * 5 + wire) * 3 + out);
}
/// Inverse function of row_index. `input` selects the uniform row if the index is 0.
constexpr TypeRow row_at(uint8_t index, Dtype input) {
  if (index == 0) return uniform_row(input);
  const int i = index - 1;
  return {detail::kMixedEnds[i / 15], detail::kMixedWires[i / 3 % 5], Dtype::kFloat32, detail::kMixedEnds[i % 3]};
}
inline constexpr int kNumRows = 46;
/// Returns true if rondo supports this row. A call with another row fails, and its error names the types.
constexpr bool row_supported(const TypeRow& row) { return row_index(row).has_value(); }

}  // namespace rondo
