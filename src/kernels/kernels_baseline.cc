// The kernels for every processor of the build target (x86-64-v1 by default; other architectures too): vectors of 16
// bytes, no special flags. See inner/vector.h.
#define RONDO_KERNEL_LEVEL kernels_baseline
#define RONDO_KERNEL_WIDTH 16
#include "kernels/inner/table.h"
#include "kernels/levels.h"

namespace rondo {
constexpr KernelTable kBaselineKernels = [] {
  using namespace kernels_baseline;
  return KernelTable RONDO_TABLE("baseline");
}();
}  // namespace rondo
