# Every SIMD level is one file with its own instruction set; no other file of the library gets these flags.
# -ffp-contract=off: a fused multiply-add would round differently from the level that lacks it.
# -fno-trapping-math: lanes beyond the end of the data may raise floating-point flags, which are never read.
set(rondo_kernel_flags -ffp-contract=off -fno-trapping-math)
if(RONDO_SANITIZE)
  # The checks around every access make -O3 take minutes. All levels share one source: undefined behaviour is checked in
  # one level only, addresses in all.
  list(APPEND rondo_kernel_flags -O1)
  # Half of the compiler's time. AddressSanitizer checks every access through a pointer.
  if(RONDO_SANITIZE MATCHES "undefined" AND RONDO_SANITIZE MATCHES "address")
    list(APPEND rondo_kernel_flags -fno-sanitize=pointer-overflow)
  endif()
  set(rondo_kernel_flags_levels -fno-sanitize=undefined)
  if(RONDO_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND rondo_kernel_flags -fsanitize-address-outline-instrumentation)  # compiles in half the time
  endif()
else()
  list(APPEND rondo_kernel_flags -O3)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND rondo_kernel_flags -Wno-uninitialized -Wno-maybe-uninitialized)  # GCC 12's own intrinsics headers
endif()
set(rondo_kernel_flags_avx2 -mavx2 -mf16c -mbmi2 -mtune=haswell)
set(rondo_kernel_flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c -mbmi2 -mtune=icelake-server
                              -mprefer-vector-width=512)
set_source_files_properties(kernels/kernels_baseline.cc PROPERTIES COMPILE_OPTIONS "${rondo_kernel_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  foreach(level avx2 avx512)
    set_source_files_properties(kernels/kernels_${level}.cc PROPERTIES COMPILE_OPTIONS
                                "${rondo_kernel_flags};${rondo_kernel_flags_levels};${rondo_kernel_flags_${level}}")
  endforeach()
endif()
