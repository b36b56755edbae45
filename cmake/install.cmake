# The installed components. rondo: librondo, librondo_fsdp, the public headers, the CMake package and rondo.pc.
# rondo_nccl: libnccl.so.2. rondo_doc: pages and examples. (tools/ installs the command line.)
include(CMakePackageConfigHelpers)
set(RONDO_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)

install(TARGETS rondo rondo_fsdp rondo_mpi EXPORT rondoTargets COMPONENT rondo)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rondo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT rondo
        FILES_MATCHING PATTERN "*.h")

# libnccl.so.2 has its own component and folder, so that no linker or loader uses it instead of NVIDIA's by accident.
# Programs must name it (LD_PRELOAD, LD_LIBRARY_PATH, or -L for the link libnccl.so; docs/nccl.md).
install(TARGETS rondo_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/rondo-nccl COMPONENT rondo_nccl)

install(EXPORT rondoTargets NAMESPACE rondo:: DESTINATION ${RONDO_PACKAGE_DIR} COMPONENT rondo)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${PROJECT_BINARY_DIR}/rondoConfig.cmake
                              INSTALL_DESTINATION ${RONDO_PACKAGE_DIR})
# Before 1.0 a minor release may change the interface. Therefore a consumer requests the same minor version.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rondoConfig.cmake ${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake
        DESTINATION ${RONDO_PACKAGE_DIR} COMPONENT rondo)

# A .pc file computes its prefix from its own path, so that an installed tree can be moved.
file(RELATIVE_PATH RONDO_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(RONDO_PC_REQUIRES)
foreach(library rondo rondo_fsdp)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/rondo.pc.in ${PROJECT_BINARY_DIR}/${library}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${library}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT rondo)
  set(RONDO_PC_REQUIRES "Requires: rondo")
endforeach()

# The folders keep their relative places, so that the links between pages stay valid.
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rondo_doc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT rondo_doc)
