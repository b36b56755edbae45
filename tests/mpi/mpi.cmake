# Programs for each installed MPI, built by its own compiler, because FindMPI finds only one. None under sanitizers,
# because these report errors in the MPIs.

# Sets RONDO_WHY_NO_openmpi and RONDO_WHY_NO_mpich to the reason if there are no programs for it. Debian's wrappers may
# exist without the headers.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/mpi_probe.cc "#include <mpi.h>\n")
foreach(mpi openmpi mpich)
  set(RONDO_WHY_NO_${mpi} "")
  find_program(RONDO_MPICXX_${mpi} mpicxx.${mpi})
  set(RONDO_RUN_MPICXX_${mpi} ${CMAKE_COMMAND} -E env OMPI_CXX=${CMAKE_CXX_COMPILER} MPICH_CXX=${CMAKE_CXX_COMPILER}
      ${RONDO_MPICXX_${mpi}})
  if(RONDO_SANITIZE)
    set(RONDO_WHY_NO_${mpi} "this is a sanitizer's build")
  elseif(NOT RONDO_MPICXX_${mpi})
    set(RONDO_WHY_NO_${mpi} "mpicxx.${mpi} is not installed")
  else()
    execute_process(COMMAND ${RONDO_RUN_MPICXX_${mpi}} -fsyntax-only ${CMAKE_CURRENT_BINARY_DIR}/mpi_probe.cc
                    RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
    if(NOT result EQUAL 0)
      set(RONDO_WHY_NO_${mpi} "mpicxx.${mpi} finds no mpi.h")
    endif()
  endif()
  if(RONDO_WHY_NO_${mpi})
    message(STATUS "tests: no programs of ${mpi}: ${RONDO_WHY_NO_${mpi}}")
  endif()
endforeach()

# rondo_add_mpi_programs(NAME SOURCE EXECUTABLE...) makes NAME_openmpi and NAME_mpich for tests, if possible.
function(rondo_add_mpi_programs name source)
  set(programs)
  foreach(mpi openmpi mpich)
    if(NOT RONDO_WHY_NO_${mpi})
      set(program ${CMAKE_CURRENT_BINARY_DIR}/${name}_${mpi})
      add_custom_command(
        OUTPUT ${program}
        COMMAND ${RONDO_RUN_MPICXX_${mpi}} -std=c++20 -O1 -Wall -Wextra -Wno-unused-parameter -Wno-cast-function-type
                -I${PROJECT_SOURCE_DIR}/include -MD -MF ${program}.d -MT ${program} -o ${program} ${source}
                $<TARGET_FILE:rondo> -Wl,-rpath,$<TARGET_FILE_DIR:rondo>
        DEPENDS ${source} rondo
        DEPFILE ${program}.d
        COMMENT "Building ${name}_${mpi}"
        VERBATIM)
      list(APPEND programs ${program})
    endif()
  endforeach()
  add_custom_target(${name}_mpi DEPENDS ${programs})
  foreach(test IN LISTS ARGN)
    target_compile_definitions(${test} PRIVATE RONDO_MPI_PROGRAMS="${CMAKE_CURRENT_BINARY_DIR}"
                                               RONDO_WHY_NO_OPENMPI="${RONDO_WHY_NO_openmpi}"
                                               RONDO_WHY_NO_MPICH="${RONDO_WHY_NO_mpich}")
    add_dependencies(${test} ${name}_mpi)
  endforeach()
endfunction()

rondo_add_mpi_programs(program ${CMAKE_CURRENT_SOURCE_DIR}/mpi/program.cc ${executable_of_mpi_communicator_test})
set(tests ${executable_of_examples_launch_test} ${executable_of_examples_launch_hosts_test})
if(tests)
  rondo_add_mpi_programs(mpi_comm ${PROJECT_SOURCE_DIR}/examples/02_launch/mpi_comm.cc ${tests})
  foreach(test IN LISTS tests)
    target_compile_definitions(${test} PRIVATE RONDO_EXAMPLE_LAUNCH="$<TARGET_FILE:example_02_launch>")
    add_dependencies(${test} example_02_launch)
  endforeach()
endif()
