// The Env of block_calls.h on a device: a block of kBlockThreads CUDA threads.
#pragma once

#include <cstdint>

#include "device/engine/device_program.h"
#include "protocol/device_memory.cuh"

namespace rondo {

struct DeviceEnv {
  using Mem = DeviceMem;
  static constexpr uint32_t kPollEvery = 1024, kLineThreads = 8;

  __device__ static uint32_t thread() { return threadIdx.x; }
  __device__ static uint32_t threads() { return blockDim.x; }
  __device__ static uint32_t block() { return blockIdx.x; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool any(bool value) { return __syncthreads_or(value) != 0; }
  __device__ static bool line_any(bool value) { return __any_sync(0xffu << (threadIdx.x & 24), value) != 0; }
  template <class Read>
  __device__ static uint32_t once(Read read) {
    const unsigned together = __activemask();
    const int first = __ffs(static_cast<int>(together)) - 1;
    uint32_t value = 0;
    if (static_cast<int>(threadIdx.x & 31) == first) value = read();
    return __shfl_sync(together, value, first);
  }
  __device__ static uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  __device__ static void relax(uint32_t) {}
};

}  // namespace rondo
