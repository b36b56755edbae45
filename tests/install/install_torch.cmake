# Run by ctest (cmake -P): installs components rondo and rondo_torch to a new prefix and moves it. A project that finds
# them trains with them. Without libtorch, with another version of it, or without component rondo_torch, the project
# gets an error at configure time.
cmake_minimum_required(VERSION 3.25)

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${out}")
  endif()
  message(STATUS "${what}\n${out}")
endfunction()

function(refused words prefixes)
  file(REMOVE_RECURSE ${WORK_DIR}/refused)
  execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CONSUMER_DIR} -B ${WORK_DIR}/refused
                          "-DCMAKE_PREFIX_PATH=${prefixes}" -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
                  RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  string(REGEX REPLACE "[ \n]+" " " out "${out}")
  if(result EQUAL 0 OR NOT out MATCHES "${words}")
    message(FATAL_ERROR "expected a refusal with '${words}' (${result}):\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run("install rondo" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first --component rondo)
refused("built without RONDO_TORCH=ON" "${WORK_DIR}/first;${TORCH}")
run("install rondo_torch" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first --component rondo_torch)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/prefix)
file(GLOB headers RELATIVE ${WORK_DIR}/prefix/include ${WORK_DIR}/prefix/include/rondo/torch/*)
if(NOT headers STREQUAL "rondo/torch/calls.h;rondo/torch/fully_shard.h;rondo/torch/policy.h")
  message(FATAL_ERROR "headers of rondo::torch: ${headers}")
endif()

refused("no libtorch below CMAKE_PREFIX_PATH" "${WORK_DIR}/prefix")
set(other ${WORK_DIR}/other)  # the parts of libtorch that are checked
foreach(file include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
  file(WRITE ${other}/${file} "")
endforeach()
file(WRITE ${other}/include/torch/headeronly/version.h
     "#define TORCH_VERSION_MAJOR 1\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 3\n")
refused("built with libtorch .* is of 1\\.99\\.3" "${WORK_DIR}/prefix;${other}")

run("configure the consumer" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CONSUMER_DIR} -B ${WORK_DIR}/build
    "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix\\;${TORCH}" -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_COMPILER=${CXX_COMPILER})
run("build the consumer" ${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run("the consumer" ${WORK_DIR}/build/torch_consumer)
