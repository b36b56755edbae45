// DeviceMem: the memory-order policy of CUDA threads (memory.h defines policies). Everything is at system scope,
// because a peer is on another device or may be.
//
// A pair is one access of 16 bytes in which each word is atomic, as LL needs. A piece of a line is the same. LL128 also
// needs the eight pieces of a line, stored by eight neighbouring threads in one instruction, to arrive together; NVLink
// and accesses within a device guarantee this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda/atomic>

#include "protocol/memory.h"

namespace rondo {

struct DeviceMem {
  template <class T>
  using Ref = cuda::atomic_ref<T, cuda::thread_scope_system>;

  __device__ static uint64_t load_acquire(const uint64_t* p) {
    return Ref<uint64_t>(*const_cast<uint64_t*>(p)).load(cuda::memory_order_acquire);
  }
  __device__ static uint64_t load_relaxed(const uint64_t* p) {
    return Ref<uint64_t>(*const_cast<uint64_t*>(p)).load(cuda::memory_order_relaxed);
  }
  __device__ static void store_release(uint64_t* p, uint64_t v) {
    Ref<uint64_t>(*p).store(v, cuda::memory_order_release);
  }
  __device__ static void store_relaxed(uint64_t* p, uint64_t v) {
    Ref<uint64_t>(*p).store(v, cuda::memory_order_relaxed);
  }
  __device__ static uint32_t load_acquire32(const uint32_t* p) {
    return Ref<uint32_t>(*const_cast<uint32_t*>(p)).load(cuda::memory_order_acquire);
  }
  __device__ static void store_release32(uint32_t* p, uint32_t v) {
    Ref<uint32_t>(*p).store(v, cuda::memory_order_release);
  }
  __device__ static uint64_t fetch_add(uint64_t* p, uint64_t v) {
    return Ref<uint64_t>(*p).fetch_add(v, cuda::memory_order_acq_rel);
  }
  __device__ static uint64_t fetch_or(uint64_t* p, uint64_t v) {
    return Ref<uint64_t>(*p).fetch_or(v, cuda::memory_order_acq_rel);
  }
  __device__ static void prefetch_for_write(const void*) {}
  __device__ static void prefetch_for_read(const void*) {}

  __device__ static WordPair load_pair(const std::byte* p) {
    WordPair v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v.lo), "=l"(v.hi)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return v;
  }
  __device__ static void store_pair(std::byte* p, WordPair v) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(p)), "l"(v.lo), "l"(v.hi)
                 : "memory");
  }
  // The eight threads of a line are neighbours: piece = thread mod 8. They store and load in one instruction.
  __device__ static void store_piece(std::byte* line, uint32_t piece, WordPair v) {
    __syncwarp(line_threads());
    store_pair(line + 16 * piece, v);
  }
  __device__ static WordPair load_piece(const std::byte* line, uint32_t piece, uint64_t& flag) {
    __syncwarp(line_threads());
    const WordPair v = load_pair(line + 16 * piece);
    flag = __shfl_sync(line_threads(), v.hi, 7, 8);
    return v;
  }

 private:
  __device__ static uint32_t line_threads() { return 0xffu << (threadIdx.x & 24); }
};

}  // namespace rondo
