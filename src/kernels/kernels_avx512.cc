// The kernels for AVX-512 (F, BW, DQ, VL: Skylake-X, Zen 4 and later): vectors of 64 bytes, masked tails. Compiled with
// that instruction set (kernels.cmake): share nothing with other files. See inner/vector.h.
#if defined(__x86_64__)
#define RONDO_KERNEL_LEVEL kernels_avx512
#define RONDO_KERNEL_WIDTH 64
#include "kernels/inner/table.h"
#include "kernels/levels.h"

namespace rondo {
constexpr KernelTable kAvx512Kernels = [] {
  using namespace kernels_avx512;
  return KernelTable RONDO_TABLE("avx512");
}();
}  // namespace rondo
#endif
