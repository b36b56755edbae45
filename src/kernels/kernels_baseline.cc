// The kernels for any processor that the build targets (x86-64-v1 by default; other architectures likewise): vectors of
// 16 bytes, no flags of their own. See inner/vector.h.
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
