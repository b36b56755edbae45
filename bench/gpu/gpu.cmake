# Benchmarks on a device. They build everywhere. Without a device they print the reason and end with status 77.
add_executable(gpu_bandwidth ${CMAKE_CURRENT_LIST_DIR}/gpu_bandwidth.cc)
target_link_libraries(gpu_bandwidth PRIVATE rondo_internal)

# Measures libnccl's calls through any libnccl.so.2, rondo's or NVIDIA's, with the same program.
add_executable(nccl_contender ${CMAKE_CURRENT_LIST_DIR}/nccl_contender.cc)
target_link_libraries(nccl_contender PRIVATE rondo_internal ${CMAKE_DL_LIBS})
