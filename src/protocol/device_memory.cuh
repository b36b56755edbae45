// DeviceMem: the memory-order policy of CUDA threads (memory.h defines policies). Everything is at system scope,
// because a peer is on another device or may be. All addresses are of global memory.
//
// A pair is one access of 16 bytes in which each word is atomic, as LL needs. A piece of a line is the same. LL128 also
// needs the eight pieces of a line, stored by eight neighbouring threads in one instruction, to arrive together; NVLink
// and accesses within a device guarantee this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "protocol/memory.h"

namespace rondo {

struct DeviceMem {
  __device__ static uint64_t load_acquire(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
  }
  __device__ static uint64_t load_relaxed(const uint64_t* p) {
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
  }
  __device__ static void store_release(uint64_t* p, uint64_t v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
  }
  __device__ static void store_relaxed(uint64_t* p, uint64_t v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(__cvta_generic_to_global(p)), "l"(v) : "memory");
  }
  // A fence and a later relaxed store together are a release. The barrier before the fence makes it cumulative.
  __device__ static void fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }
  __device__ static void store_fenced(uint64_t* p, uint64_t v) { store_relaxed(p, v); }
  __device__ static uint32_t load_acquire32(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
    return v;
  }
  __device__ static void store_release32(uint32_t* p, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(__cvta_generic_to_global(p)), "r"(v) : "memory");
  }
  __device__ static uint64_t fetch_add(uint64_t* p, uint64_t v) {
    uint64_t old;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(__cvta_generic_to_global(p)), "l"(v)
                 : "memory");
    return old;
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
  // All loads are in flight together.
  template <uint32_t kN>
  __device__ static void load_pieces(const std::byte* line, uint32_t stride, uint32_t piece, WordPair (&v)[kN],
                                     uint64_t (&flags)[kN]) {
    __syncwarp(line_threads());
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) v[u] = load_pair(line + u * stride + 16 * piece);
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) flags[u] = __shfl_sync(line_threads(), v[u].hi, 7, 8);
  }
  __device__ static uint32_t line_threads() { return 0xffu << (thread() & 24); }
  // The compiler must not compute all that follows from it in advance: the results take too many registers.
  __device__ static uint32_t thread() {
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t;
  }
};

}  // namespace rondo
