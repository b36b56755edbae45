# Defines rondo::libtorch (libtorch for CPU code) and RONDO_LIBTORCH_VERSION. If libtorch is not found, it sets only
# RONDO_LIBTORCH_MISSING to the reason. Used by the build and, installed, by find_package(rondo).
#
# TorchConfig.cmake of a CUDA wheel requires the CUDA toolkit. CPU code needs only the headers and two libraries.
# CMAKE_PREFIX_PATH may name the torch package or, like torch.utils.cmake_prefix_path, its share/cmake.
set(RONDO_LIBTORCH_MISSING)
set(_rondo_hints)
foreach(_rondo_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _rondo_hints ${_rondo_prefix} ${_rondo_prefix}/../..)
endforeach()
find_path(RONDO_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h HINTS ${_rondo_hints} PATH_SUFFIXES include
          DOC "Folder of libtorch's headers")
find_library(RONDO_LIB_torch_cpu torch_cpu HINTS ${_rondo_hints} PATH_SUFFIXES lib)
find_library(RONDO_LIB_c10 c10 HINTS ${_rondo_hints} PATH_SUFFIXES lib)
if(NOT RONDO_LIB_torch_cpu OR NOT RONDO_LIB_c10 OR NOT RONDO_TORCH_INCLUDE)
  set(RONDO_LIBTORCH_MISSING "no libtorch below CMAKE_PREFIX_PATH (${CMAKE_PREFIX_PATH}): add \
$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)') to it")
  return()
endif()
set(RONDO_LIBTORCH_VERSION)
foreach(_rondo_header headeronly/version.h csrc/api/include/torch/version.h)  # 2.15, and older
  if(NOT RONDO_LIBTORCH_VERSION AND EXISTS ${RONDO_TORCH_INCLUDE}/torch/${_rondo_header})
    file(STRINGS ${RONDO_TORCH_INCLUDE}/torch/${_rondo_header} _rondo_parts
         REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX MATCHALL "[0-9]+" _rondo_parts "${_rondo_parts}")
    list(JOIN _rondo_parts "." RONDO_LIBTORCH_VERSION)
  endif()
endforeach()
if(NOT TARGET rondo::libtorch)
  add_library(rondo::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(rondo::libtorch SYSTEM INTERFACE ${RONDO_TORCH_INCLUDE}
                                                              ${RONDO_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_libraries(rondo::libtorch INTERFACE ${RONDO_LIB_torch_cpu} ${RONDO_LIB_c10})
endif()
