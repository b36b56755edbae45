# What `cmake --install` puts down as component rondo: librondo and librondo_fsdp, the public headers, the CMake package and
# rondo.pc; libnccl.so.2 as component rondo_nccl; pages and examples as component rondo_doc. (The command line installs
# itself, in tools/.)
include(CMakePackageConfigHelpers)
set(RONDO_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/rondo)

install(TARGETS rondo rondo_fsdp rondo_mpi EXPORT rondoTargets COMPONENT rondo)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/rondo DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT rondo
        FILES_MATCHING PATTERN "*.h")

# libnccl.so.2 is a component and has a folder of its own, so that no linker or loader finds it where NVIDIA's is meant:
# programs name it (LD_PRELOAD, LD_LIBRARY_PATH, or -L for the link libnccl.so; docs/nccl.md).
install(TARGETS rondo_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/rondo-nccl COMPONENT rondo_nccl)

install(EXPORT rondoTargets NAMESPACE rondo:: DESTINATION ${RONDO_PACKAGE_DIR} COMPONENT rondo)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/rondoConfig.cmake.in ${PROJECT_BINARY_DIR}/rondoConfig.cmake
                              INSTALL_DESTINATION ${RONDO_PACKAGE_DIR})
# Before 1.0 a minor release may change the interface, so a consumer asks for the minor version that it was written for.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rondoConfig.cmake ${PROJECT_BINARY_DIR}/rondoConfigVersion.cmake
        DESTINATION ${RONDO_PACKAGE_DIR} COMPONENT rondo)

# A .pc file finds its prefix from where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH RONDO_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(RONDO_PC_REQUIRES)
foreach(library rondo rondo_fsdp)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/rondo.pc.in ${PROJECT_BINARY_DIR}/${library}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${library}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT rondo)
  set(RONDO_PC_REQUIRES "Requires: rondo")
endforeach()

# The folders keep their places beside each other, so that the links between pages hold.
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rondo_doc)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT rondo_doc)
