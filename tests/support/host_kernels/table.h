// Rows of the table of host kernels, one array for each defining file.
#pragma once

#include <string_view>

#include "rondo/types.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {

struct KernelRow {
  std::string_view name;
  HostKernel kernel;
};
// X(dtype, name)
// clang-format off
#define RONDO_KERNEL_DTYPES(X) \
  X(kInt8, int8) \
  X(kUint8, uint8) \
  X(kInt32, int32) \
  X(kUint32, uint32) \
  X(kInt64, int64) \
  X(kUint64, uint64) \
  X(kFloat16, half) \
  X(kFloat32, float) \
  X(kFloat64, double) \
  X(kBfloat16, bfloat16) \
  X(kFloat8E4m3, fp8_e4m3) \
  X(kFloat8E5m2, fp8_e5m2)
// clang-format on
#define RONDO_X(dtype, name) extern const KernelRow kKernels_##name[8];
RONDO_KERNEL_DTYPES(RONDO_X)
#undef RONDO_X
extern const KernelRow kMixedKernels[8];
extern const KernelRow kOptimizerKernels[7];

}  // namespace rondo::testing
