# Run by ctest (cmake -P): installs the library to a new prefix, checks the installed files, moves the prefix (so that
# no path of the build tree can be in use), builds the consumer project with find_package(rondo) and runs its programs,
# then the C program again with pkg-config.
cmake_minimum_required(VERSION 3.25)

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${out}")
  endif()
  message(STATUS "${what}\n${out}")
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first --component rondo)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/prefix)

file(GLOB_RECURSE headers RELATIVE ${WORK_DIR}/prefix/include ${WORK_DIR}/prefix/include/*)
foreach(header IN LISTS headers)
  if(NOT header MATCHES "^rondo/(fsdp/)?[a-z_]+\\.h$")
    message(FATAL_ERROR "installed a header that is not public: ${header}")
  endif()
endforeach()
if(NOT "rondo/rondo.h" IN_LIST headers OR NOT "rondo/communicator.h" IN_LIST headers)
  message(FATAL_ERROR "rondo.h or communicator.h was not installed: ${headers}")
endif()

# The README's programs are compiled and run, too.
foreach(language c cpp)
  execute_process(COMMAND awk "/^```${language}$/ {on = 1; next} /^```/ {on = 0} on" ${README}
                  OUTPUT_FILE ${WORK_DIR}/readme.${language})
endforeach()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
run("configure the consumer" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CONSUMER_DIR} -B ${WORK_DIR}/build
    -D CMAKE_PREFIX_PATH=${WORK_DIR}/prefix -D CMAKE_BUILD_TYPE=Release -D EXPECTED_VERSION=${VERSION}
    -D README_FOLDER=${WORK_DIR} -D EXAMPLES_FOLDER=${EXAMPLES}
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
    -D CMAKE_C_FLAGS=${flags} -D CMAKE_CXX_FLAGS=${flags})
run("build the consumer" ${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run("C program" ${WORK_DIR}/build/consumer_c)
run("C++ program" ${WORK_DIR}/build/consumer_cpp)
run("sharded training" ${WORK_DIR}/build/consumer_fsdp)
run("README's C program" ${WORK_DIR}/build/readme_c)
run("README's C++ program" ${WORK_DIR}/build/readme_cpp)

if(EXISTS ${WORK_DIR}/build/consumer_mpi AND NOT SANITIZE)  # one rank, which every MPI runs without its launcher
  run("a communicator of MPI's" ${WORK_DIR}/build/consumer_mpi)
endif()

run("a user's algorithm" ${WORK_DIR}/build/consumer_own_algorithm)
if(CLI)  # uses rondo's functions from the program, although the plugin was linked to the installed library
  run("the plugin" ${CLI} check --plugin ${WORK_DIR}/build/libconsumer_plugin.so all_reduce --algo star --max-ranks 9)
endif()

if(PKG_CONFIG)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${WORK_DIR}/prefix/${LIBDIR}/pkgconfig
                          ${PKG_CONFIG} --cflags --libs rondo OUTPUT_VARIABLE pc_flags RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "pkg-config does not find rondo")
  endif()
  separate_arguments(pc_flags UNIX_COMMAND "${pc_flags}")
  run("compile by pkg-config" ${C_COMPILER} ${flags} -o ${WORK_DIR}/by_pkg_config ${CONSUMER_DIR}/consumer.c
      ${pc_flags} -pthread -Wl,-rpath,${WORK_DIR}/prefix/${LIBDIR})
  run("C program by pkg-config" ${WORK_DIR}/by_pkg_config)
endif()
