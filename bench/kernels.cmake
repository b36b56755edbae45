# kernels_bench: the host kernels' inner loops under Google Benchmark.
find_package(benchmark QUIET)
if(NOT benchmark_FOUND)
  message(STATUS "kernels_bench is left out: Google Benchmark was not found (Debian: libbenchmark-dev)")
  return()
endif()
add_executable(kernels_bench ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
target_link_libraries(kernels_bench PRIVATE rondo_internal benchmark::benchmark)
