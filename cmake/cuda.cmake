# CUDA kernels: src/device/engine/kernels.cu and src/fsdp/kernels.cu. Each image is a fatbin that an images.cc embeds.
# The rest of the library needs no CUDA headers and no runtime library. A build without nvcc lacks only the images.
#
#   RONDO_CUDA            AUTO (if nvcc is found), ON (an error if not), OFF
#   RONDO_CUDA_ARCHS      real architectures. Later ones use the PTX of the lowest. All use the intermediate code of the
#                         lowest, so that the front end of nvcc, which takes most of the time, runs once. Only the
#                         images of fp8 need something newer: the conversions of sm_89
#   RONDO_CUDA_QUICK      only the lowest architecture (for fp8: also the lowest with its conversions), and no
#                         optimisation (from nvcc 12.8 on) except for the images of float, copies and optimizers, whose
#                         registers a test then checks
# Defines rondo_add_cuda_images(engine fsdp) and rondo_dtype_rows(out); sets RONDO_HAVE_CUDA and RONDO_CUDA_WHY.
set(RONDO_CUDA AUTO CACHE STRING "Compile the CUDA kernels: AUTO (if nvcc is found), ON, OFF")
set_property(CACHE RONDO_CUDA PROPERTY STRINGS AUTO ON OFF)
set(RONDO_CUDA_ARCHS 80 90 100 CACHE STRING "Architectures that the CUDA kernels are compiled for, the lowest first")

option(RONDO_CUDA_QUICK "Compile for the lowest architecture, most kernels without optimisation; no device runs it" OFF)

set(RONDO_HAVE_CUDA OFF)
set(RONDO_CUDA_WHY "RONDO_CUDA is OFF")
if(NOT RONDO_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit 12.0 QUIET)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    set(RONDO_HAVE_CUDA ON)
  elseif(RONDO_CUDA STREQUAL "AUTO")
    set(RONDO_CUDA_WHY "no nvcc of CUDA 12 or later was found")
  else()
    message(FATAL_ERROR "RONDO_CUDA is ON, but no nvcc of CUDA 12 or later was found (CUDAToolkit_ROOT, PATH)")
  endif()
endif()

# Returns name:enumerator of every row of RONDO_DTYPES (include/rondo/types.h).
function(rondo_dtype_rows out)
  set(found)
  file(READ ${PROJECT_SOURCE_DIR}/include/rondo/types.h text)
  string(REGEX MATCHALL "X\\(k[A-Za-z0-9]+, [0-9]+, \"[a-z0-9_]+\", [0-9]+, k" rows "${text}")
  foreach(row IN LISTS rows)
    string(REGEX REPLACE "^X\\((k[A-Za-z0-9]+), [0-9]+, \"([a-z0-9_]+)\".*" "\\2:\\1" row "${row}")
    list(APPEND found ${row})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# rondo_gencode(OUT ARCH...): compiles for these architectures with the intermediate code of the first.
function(rondo_gencode out first)
  list(TRANSFORM ARGN PREPEND ,sm_ OUTPUT_VARIABLE others)
  list(JOIN others "" others)
  set(${out} -gencode arch=compute_${first},code=[sm_${first}${others},compute_${first}] PARENT_SCOPE)
endfunction()

if(RONDO_HAVE_CUDA)
  set(older_archs ${RONDO_CUDA_ARCHS})  # without the conversions of fp8
  list(FILTER older_archs INCLUDE REGEX "^8[0-8]$")
  set(fp8_archs ${RONDO_CUDA_ARCHS})
  list(FILTER fp8_archs EXCLUDE REGEX "^8[0-8]$")
  set(archs ${RONDO_CUDA_ARCHS})
  if(RONDO_CUDA_QUICK)
    foreach(list archs older_archs fp8_archs)
      list(SUBLIST ${list} 0 1 ${list})
    endforeach()
  endif()
  # -fmad=false: a fused multiply-add would not round like the host's kernels.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  set(common -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xfatbin=-compress-all -Xptxas=-v)
  rondo_gencode(gencode ${archs})
  set(RONDO_NVCC_FLAGS ${common} ${gencode})
  set(RONDO_NVCC_FP8_FLAGS ${common})
  foreach(list older_archs fp8_archs)
    if(${list})
      rondo_gencode(gencode ${${list}})
      list(APPEND RONDO_NVCC_FP8_FLAGS ${gencode})
    endif()
  endforeach()
endif()

# Runs a compiler and stores its output in the file $0, where scripts_cuda_resources reads registers and spills. Prints
# errors and warnings.
string(CONCAT RONDO_KEEP_LOG "\"$@\" 2>\"$0\" || { cat \"$0\" >&2; exit 1; }; "
       "grep -i warning \"$0\" >&2 || true")

# rondo_cuda_fatbin(NAME SOURCE DEFINE...): makes cuda/NAME.fatbin from the kernels of src/SOURCE.
function(rondo_cuda_fatbin name source)
  set(fatbin ${CMAKE_BINARY_DIR}/cuda/${name}.fatbin)
  list(TRANSFORM ARGN PREPEND -D OUTPUT_VARIABLE defines)
  set(flags ${RONDO_NVCC_FLAGS})
  if(name MATCHES "^fp8_")
    set(flags ${RONDO_NVCC_FP8_FLAGS})
  endif()
  if(RONDO_CUDA_QUICK AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8 AND
     NOT name MATCHES "^(float|copy|optimizer)$")
    list(APPEND defines -Ofc=max)
    set_property(GLOBAL APPEND PROPERTY RONDO_CUDA_UNOPTIMISED ${name})
  endif()
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND sh -c "${RONDO_KEEP_LOG}" ${name}.ptxas
            ${CUDAToolkit_NVCC_EXECUTABLE} -fatbin ${flags} ${defines} -I${PROJECT_SOURCE_DIR}/src
            -I${PROJECT_SOURCE_DIR}/include -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin}
            ${PROJECT_SOURCE_DIR}/src/${source}
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/cuda
    DEPENDS ${PROJECT_SOURCE_DIR}/src/${source}
    DEPFILE ${fatbin}.d
    COMMENT "CUDA kernels: ${name}"
    VERBATIM)
  set_property(GLOBAL APPEND PROPERTY RONDO_CUDA_FATBINS ${fatbin})
endfunction()

# rondo_cuda_image(NAME KIND DEFINE...): makes a fatbin of the collectives' kernels, and its row in cuda_images.inc.
function(rondo_cuda_image name kind)
  rondo_cuda_fatbin(${name} device/engine/kernels.cu ${ARGN})
  set_property(GLOBAL APPEND_STRING PROPERTY RONDO_CUDA_ROWS
               "RONDO_IMAGE(${name}, ${kind}, \"${CMAKE_BINARY_DIR}/cuda/${name}.fatbin\")\n")
endfunction()

# Compiles the images and embeds them into the images.cc of the device engine and of FSDP. Call it in the folder that
# defines the two targets.
function(rondo_add_cuda_images engine_target fsdp_target)
  if(NOT RONDO_HAVE_CUDA)
    return()
  endif()
  rondo_cuda_image(copy copy RONDO_IMAGE_COPY)
  rondo_cuda_image(mixed mixed RONDO_IMAGE_MIXED)
  rondo_dtype_rows(rows)
  foreach(row ${rows})
    string(REPLACE ":" ";" row ${row})
    list(GET row 0 name)
    list(GET row 1 dtype)
    rondo_cuda_image(${name} dtype RONDO_IMAGE_DTYPE=${dtype} RONDO_IMAGE_NAME=${name})
  endforeach()
  get_property(engine_fatbins GLOBAL PROPERTY RONDO_CUDA_FATBINS)
  rondo_cuda_fatbin(optimizer fsdp/kernels.cu)
  get_property(fatbins GLOBAL PROPERTY RONDO_CUDA_FATBINS)
  get_property(rows GLOBAL PROPERTY RONDO_CUDA_ROWS)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/cuda/cuda_images.inc CONTENT "${rows}" @ONLY)
  add_custom_target(rondo_cuda_images DEPENDS ${fatbins})  # only the kernels
  foreach(target ${engine_target} ${fsdp_target})
    add_dependencies(${target} rondo_cuda_images)
  endforeach()
  set_source_files_properties(device/engine/images.cc PROPERTIES OBJECT_DEPENDS "${engine_fatbins}"
    COMPILE_DEFINITIONS RONDO_HAVE_CUDA_IMAGES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/cuda)
  set(fatbin ${CMAKE_BINARY_DIR}/cuda/optimizer.fatbin)
  set_source_files_properties(fsdp/images.cc PROPERTIES OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS RONDO_OPTIMIZER_FATBIN="${fatbin}")
endfunction()
