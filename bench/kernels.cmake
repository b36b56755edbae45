# kernels_bench: the host kernels' inner loops under Google Benchmark.
find_package(benchmark REQUIRED)
add_executable(kernels_bench ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
target_link_libraries(kernels_bench PRIVATE rondo_internal benchmark::benchmark)
