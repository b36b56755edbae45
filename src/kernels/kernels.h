// Host reduce and copy kernels: several sources, several sinks, one pass.
//
// Every kernel is compiled once per SIMD level (src/kernels/README.md has the method) and selected at run time.
// Contract: sources are combined left to right, src[0] op src[1] op ..., in the accumulator type of the dtype (fp32 for
// 8- and 16-bit floats), rounded once per sink. A sink may be the same memory as a source (in place, same first
// element); otherwise sinks and sources do not overlap. Only the element's own alignment is required. The bits of
// results do not depend on the SIMD level, the alignment or the position in the array. num_elems may be 0. No global
// state; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rondo/types.h"

namespace rondo {

struct KernelArgs {
  static constexpr uint32_t kNoOwn = UINT32_MAX;
  const void* const* src = nullptr;  // num_src arrays of num_elems elements
  void* const* dst = nullptr;        // num_dst arrays of num_elems elements
  uint32_t num_src = 0;              // >= 1
  uint32_t num_dst = 0;              // >= 1
  uint64_t num_elems = 0;
  uint32_t own = kNoOwn;             // premul_sum: index of the source that is the caller's raw input
  const void* premul = nullptr;      // its scale, one element of the accumulator type; used if own != kNoOwn
  uint32_t divide_by = 0;            // avg: divides the result in the accumulator type; 0: no division
};
using Kernel = void (*)(const KernelArgs&);

/// A copy or reduction of a mixed TypeRow. Sources and sinks hold the wire type, except src[args.own] (own_type), if
/// there is one, and dst[0] (dst_type), if has_dst. Every source is widened to fp32. The own one is then scaled
/// (args.premul, unless null) and rounded to the wire type as if it were sent. Sources are combined left to right in
/// fp32; divided (args.divide_by); rounded once per sink: sends to the wire type, dst[0] to dst_type (first to the wire
/// type if result_as_wire). NaN is stored as the canonical one, in copies too. dst[0] may be
/// the own source if both have the same type; otherwise no source and sink may be the same memory.
/// raw: the sources are their owners' inputs, not sent. All hold own_type and are treated like the own source; args.own
/// only names the source that may share memory with the sink; args.premul is null.
struct MixedKernelArgs {
  KernelArgs args;
  Op op = Op::kSum;
  Dtype own_type = Dtype::kFloat32, wire = Dtype::kFloat32, dst_type = Dtype::kFloat32;
  bool has_dst = false;
  bool result_as_wire = false;
  bool raw = false;
};
using MixedKernel = void (*)(const MixedKernelArgs&);

/// Copy: num_elems counts bytes, num_src is 1. Reductions: num_src >= 1 (one source: a copy that scales or divides).
struct KernelTable {
  std::string_view level;  // "baseline", "avx2", "avx512"
  Kernel copy;
  Kernel reduce[kNumDtypes][kNumOps];  // nullptr unless op_combines
  MixedKernel mixed;                   // every mixed row and arithmetic op
};

enum class SimdLevel : uint8_t { kBaseline, kAvx2, kAvx512 };
/// The best level that this processor and operating system support.
SimdLevel best_simd_level();
/// The table of a level; nullptr if this processor cannot run it (or the build left it out).
const KernelTable* kernel_table(SimdLevel level);
std::optional<SimdLevel> simd_level_from_name(std::string_view name);

}  // namespace rondo
