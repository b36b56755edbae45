// The kernels for AVX2 with F16C: vectors of 32 bytes. Compiled with that instruction set (kernels.cmake): share
// nothing with other files. See inner/vector.h.
#if defined(__x86_64__)
#define RONDO_KERNEL_LEVEL kernels_avx2
#define RONDO_KERNEL_WIDTH 32
#include "kernels/inner/table.h"
#include "kernels/levels.h"

namespace rondo {
constexpr KernelTable kAvx2Kernels = [] {
  using namespace kernels_avx2;
  return KernelTable RONDO_TABLE("avx2");
}();
}  // namespace rondo
#endif
