# Programs of each installed MPI, built by its own compiler, because FindMPI knows one of those that stand side by side.
# rondo_add_mpi_programs(NAME SOURCE FOLDER) makes FOLDER/NAME_openmpi and FOLDER/NAME_mpich, as far as they can be had,
# with target NAME_mpi; under sanitizers none, since those find fault with the MPIs.
function(rondo_add_mpi_programs name source folder)
  set(programs)
  foreach(mpi openmpi mpich)
    find_program(RONDO_MPICXX_${mpi} mpicxx.${mpi})
    if(NOT RONDO_MPICXX_${mpi} OR RONDO_SANITIZE)
      message(STATUS "tests: ${name}_${mpi} is not built (mpicxx.${mpi}: ${RONDO_MPICXX_${mpi}}, "
                     "sanitizer: ${RONDO_SANITIZE}), its tests will be skipped")
      continue()
    endif()
    set(program ${folder}/${name}_${mpi})
    add_custom_command(
      OUTPUT ${program}
      COMMAND ${CMAKE_COMMAND} -E env OMPI_CXX=${CMAKE_CXX_COMPILER} MPICH_CXX=${CMAKE_CXX_COMPILER}
              ${RONDO_MPICXX_${mpi}} -std=c++20 -O1 -Wall -Wextra -Wno-unused-parameter -Wno-cast-function-type
              -I${PROJECT_SOURCE_DIR}/include -MD -MF ${program}.d -MT ${program} -o ${program} ${source}
              $<TARGET_FILE:rondo> -Wl,-rpath,$<TARGET_FILE_DIR:rondo>
      DEPENDS ${source} rondo
      DEPFILE ${program}.d
      COMMENT "Building ${name}_${mpi}"
      VERBATIM)
    list(APPEND programs ${program})
  endforeach()
  add_custom_target(${name}_mpi DEPENDS ${programs})
endfunction()

rondo_add_mpi_programs(program ${CMAKE_CURRENT_SOURCE_DIR}/mpi/program.cc ${CMAKE_CURRENT_BINARY_DIR})
target_compile_definitions(mpi_communicator_test PRIVATE RONDO_MPI_PROGRAMS="${CMAKE_CURRENT_BINARY_DIR}")
add_dependencies(mpi_communicator_test program_mpi)

if(TARGET examples_launch_test)
  rondo_add_mpi_programs(mpi_comm ${PROJECT_SOURCE_DIR}/examples/02_launch/mpi_comm.cc ${CMAKE_CURRENT_BINARY_DIR})
  foreach(test examples_launch_test examples_launch_hosts_test)
    target_compile_definitions(${test} PRIVATE RONDO_MPI_PROGRAMS="${CMAKE_CURRENT_BINARY_DIR}"
                                               RONDO_EXAMPLE_LAUNCH="$<TARGET_FILE:example_02_launch>")
    add_dependencies(${test} mpi_comm_mpi example_02_launch)
  endforeach()
endif()
