// Rows of the table of host kernels, one array for each defining file.
#pragma once

#include <string_view>

#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {

struct KernelRow {
  std::string_view name;
  HostKernel kernel;
};
extern const KernelRow kMixedKernels[8];
extern const KernelRow kOptimizerKernels[7];

}  // namespace rondo::testing
