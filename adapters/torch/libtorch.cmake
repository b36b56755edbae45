# rondo_libtorch: libtorch for code that runs on the CPU. TorchConfig.cmake of a wheel that was built for CUDA asks for
# CUDA's toolkit; the headers and the two libraries that such code needs do not. CMAKE_PREFIX_PATH may name the torch
# package itself or, as torch.utils.cmake_prefix_path does, its share/cmake.
set(hints)
foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND hints ${prefix} ${prefix}/../..)
endforeach()
find_path(RONDO_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h HINTS ${hints} PATH_SUFFIXES include
          DOC "Folder of libtorch's headers")
foreach(name torch_cpu c10)
  find_library(RONDO_LIB_${name} ${name} HINTS ${hints} PATH_SUFFIXES lib)
  if(NOT RONDO_LIB_${name} OR NOT RONDO_TORCH_INCLUDE)
    message(FATAL_ERROR "RONDO_TORCH: no libtorch below CMAKE_PREFIX_PATH (${CMAKE_PREFIX_PATH}): give "
                        "-D CMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')")
  endif()
endforeach()
add_library(rondo_libtorch INTERFACE)
target_include_directories(rondo_libtorch SYSTEM INTERFACE ${RONDO_TORCH_INCLUDE}
                                                           ${RONDO_TORCH_INCLUDE}/torch/csrc/api/include)
target_link_libraries(rondo_libtorch INTERFACE ${RONDO_LIB_torch_cpu} ${RONDO_LIB_c10})
