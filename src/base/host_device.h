// RONDO_HOST_DEVICE marks functions that run on host threads and in CUDA kernels; empty without nvcc. constexpr
// functions need no mark: kernels are compiled with --expt-relaxed-constexpr.
#pragma once

#if defined(__CUDACC__)
#define RONDO_HOST_DEVICE __host__ __device__
#define RONDO_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#define RONDO_HOST_DEVICE_APART __host__ __device__ __noinline__
#else
#define RONDO_HOST_DEVICE
#define RONDO_HOST_DEVICE_INLINE inline
#define RONDO_HOST_DEVICE_APART
#endif

// Before a loop over registers: unrolls it completely, so that no array is indexed by a variable.
#if defined(__CUDACC__)
#define RONDO_UNROLL _Pragma("unroll")
#define RONDO_NO_UNROLL _Pragma("unroll 1")
#else
#define RONDO_UNROLL _Pragma("GCC unroll 16")
#define RONDO_NO_UNROLL
#endif
