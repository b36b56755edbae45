// The Env of block_calls.h on a device: a block of kBlockThreads CUDA threads.
#pragma once

#include <cstdint>

#include "device/engine/device_program.h"
#include "protocol/device_memory.cuh"

namespace rondo {

struct DeviceEnv {
  using Mem = DeviceMem;
  static constexpr uint32_t kPollEvery = 1024, kLineThreads = 8;

  __device__ static uint32_t thread() { return Mem::thread(); }
  __device__ static uint32_t threads() { return kBlockThreads; }  // a constant, so that strides need no registers
  __device__ static uint32_t block() { return blockIdx.x; }
  __device__ static void sync() { __syncthreads(); }
  __device__ static bool any(bool value) { return __syncthreads_or(value) != 0; }
  __device__ static bool line_any(bool value) { return __any_sync(Mem::line_threads(), value) != 0; }
  template <class Test>
  __device__ static bool one_finds(Test test) {
    const unsigned together = __activemask();
    bool found = false;
    if ((together & ((1u << (thread() & 31)) - 1)) == 0) found = test();
    return __any_sync(together, found) != 0;
  }
  __device__ static uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  __device__ static void relax(uint32_t) {}
};

}  // namespace rondo
