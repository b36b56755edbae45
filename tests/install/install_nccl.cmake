# Run by ctest (cmake -P): component rondo_nccl has only libnccl.so.2 in its own folder, and libnccl.so for the linker.
# Component rondo has neither.
cmake_minimum_required(VERSION 3.25)
foreach(component rondo rondo_nccl)
  file(REMOVE_RECURSE ${WORK_DIR}/${component})
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/${component}
                          --component ${component} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE ${component} RELATIVE ${WORK_DIR}/${component} ${WORK_DIR}/${component}/*)
endforeach()
if(NOT rondo_nccl STREQUAL "${LIBDIR}/rondo-nccl/libnccl.so;${LIBDIR}/rondo-nccl/libnccl.so.2")
  message(FATAL_ERROR "component rondo_nccl is: ${rondo_nccl}")
endif()
file(READ_SYMLINK ${WORK_DIR}/rondo_nccl/${LIBDIR}/rondo-nccl/libnccl.so target)
if(NOT target STREQUAL "libnccl.so.2")
  message(FATAL_ERROR "libnccl.so is a link to ${target}")
endif()
if(rondo MATCHES "libnccl" OR NOT "include/rondo/nccl_ext.h" IN_LIST rondo)
  message(FATAL_ERROR "component rondo is: ${rondo}")
endif()
