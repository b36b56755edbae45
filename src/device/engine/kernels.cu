// Entry points of the kernels. cmake/cuda.cmake compiles this file once for each image, with one of
//   RONDO_IMAGE_DTYPE (a Dtype) and RONDO_IMAGE_NAME (its name)   four ops of one dtype;
//   RONDO_IMAGE_MIXED                                              four ops of mixed type rows
//   RONDO_IMAGE_COPY                                               copies, and the clock
// lower.h defines their names. Each has one argument, passed by value. A block has kBlockThreads threads
// (device_program.h; the clock has one), and a multiprocessor at most one block.
#include "device/engine/clock_exchange.h"
#include "device/engine/device_env.cuh"
#include "device/engine/grid_reduce.h"
#include "device/engine/interpreter.h"

namespace rondo {
namespace {

template <class Ops>
__device__ __forceinline__ void interpret(const LaunchArgs& args) {
  using State = BlockState<DeviceEnv::Mem>;
  __shared__ __align__(64) unsigned char memory[sizeof(State)];
  DeviceEnv env;
  Interpreter<DeviceEnv, Ops>(env, *reinterpret_cast<State*>(memory), args).run();
}

__device__ __forceinline__ device_kernels::Threads grid_threads() {
  return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
}

}  // namespace
}  // namespace rondo

#define RONDO_KERNEL extern "C" __global__ void __launch_bounds__(rondo::kBlockThreads, 1)
#define RONDO_CAT3_(a, b, c) a##b##_##c
#define RONDO_CAT3(a, b, c) RONDO_CAT3_(a, b, c)

#define RONDO_KERNELS(name, op_name, ...)                                                                    \
  RONDO_KERNEL RONDO_CAT3(rondo_interpret_, name, op_name)(const __grid_constant__ rondo::LaunchArgs args) { \
    rondo::interpret<__VA_ARGS__>(args);                               \
  }                                                                                                          \
  RONDO_KERNEL RONDO_CAT3(rondo_reduce_, name, op_name)(const __grid_constant__ rondo::ReduceArgs args) {    \
    rondo::grid_reduce<__VA_ARGS__>(args, rondo::grid_threads());                                            \
  }

#if defined(RONDO_IMAGE_DTYPE)
#define RONDO_UNIFORM(op) rondo::device_kernels::UniformOps<rondo::Dtype::RONDO_IMAGE_DTYPE, rondo::Op::op>
RONDO_KERNELS(RONDO_IMAGE_NAME, sum, RONDO_UNIFORM(kSum))
RONDO_KERNELS(RONDO_IMAGE_NAME, prod, RONDO_UNIFORM(kProd))
RONDO_KERNELS(RONDO_IMAGE_NAME, max, RONDO_UNIFORM(kMax))
RONDO_KERNELS(RONDO_IMAGE_NAME, min, RONDO_UNIFORM(kMin))
#elif defined(RONDO_IMAGE_MIXED)
RONDO_KERNELS(mixed, sum, rondo::device_kernels::MixedOps<rondo::Op::kSum>)
RONDO_KERNELS(mixed, prod, rondo::device_kernels::MixedOps<rondo::Op::kProd>)
RONDO_KERNELS(mixed, max, rondo::device_kernels::MixedOps<rondo::Op::kMax>)
RONDO_KERNELS(mixed, min, rondo::device_kernels::MixedOps<rondo::Op::kMin>)
#elif defined(RONDO_IMAGE_COPY)
RONDO_KERNEL rondo_interpret_copy(const __grid_constant__ rondo::LaunchArgs args) {
  rondo::interpret<rondo::device_kernels::BytesOps>(args);
}
RONDO_KERNEL rondo_copy(const __grid_constant__ rondo::ReduceArgs args) {
  rondo::grid_reduce<rondo::device_kernels::BytesOps>(args, rondo::grid_threads());
}
extern "C" __global__ void rondo_clock(const __grid_constant__ rondo::ClockArgs args) {
  rondo::tell_clock<rondo::DeviceEnv>(args);
}
#else
#error "name an image"
#endif
