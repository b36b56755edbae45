// Entry points of the optimizer kernels, compiled into one image (cmake/cuda.cmake). optimizer_kernels.h lists their
// names. Each kernel has one argument, passed by value.
#include "fsdp/optimizer_kernels.h"

#define RONDO_X(name, ...)                                                                          \
  extern "C" __global__ void __launch_bounds__(rondo::kOptimizerThreads, 1)                         \
      name(const __grid_constant__ rondo::OptimizerArgs args) {                                     \
    __VA_ARGS__(args, {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x});             \
  }
RONDO_OPTIMIZER_KERNELS(RONDO_X)
#undef RONDO_X
