# libnccl.so.2: the room nccl and all of rondo as one shared library that exports only NCCL's names. It is built and
# installed in a separate folder, so that nothing uses it by accident instead of NVIDIA's (docs/nccl.md).
file(GLOB RONDO_NCCL_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/nccl/*.cc)
add_library(rondo_nccl_objects OBJECT ${RONDO_NCCL_SOURCES})
target_include_directories(rondo_nccl_objects PUBLIC ${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(rondo_nccl_objects PRIVATE -fno-exceptions -fno-rtti)
file(GLOB RONDO_NCCL_API ${CMAKE_CURRENT_SOURCE_DIR}/nccl/api_*.cc)
set_source_files_properties(${RONDO_NCCL_API} PROPERTIES COMPILE_OPTIONS "${RONDO_NOT_UNWOUND}")
rondo_unity_build(rondo_nccl_objects)
target_compile_definitions(rondo_nccl_objects PRIVATE RONDO_VERSION="${PROJECT_VERSION}")
target_link_libraries(rondo_nccl_objects PRIVATE rondo_options rondo_fmt Threads::Threads)
set_target_properties(rondo_nccl_objects PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                                    VISIBILITY_INLINES_HIDDEN ON)

# For tests of internals.
add_library(rondo_nccl_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:rondo_nccl_objects>)
target_link_libraries(rondo_nccl_internal PUBLIC rondo_internal)

set(RONDO_NCCL_MAP ${CMAKE_CURRENT_SOURCE_DIR}/nccl/libnccl.map)
add_library(rondo_nccl SHARED $<TARGET_OBJECTS:rondo_nccl_objects> $<TARGET_OBJECTS:rondo_objects>)
add_library(rondo::nccl ALIAS rondo_nccl)
target_link_libraries(rondo_nccl PRIVATE rondo_options rondo_fmt OpenSSL::Crypto Threads::Threads)
target_link_options(rondo_nccl PRIVATE -Wl,--version-script=${RONDO_NCCL_MAP} -Wl,--exclude-libs,ALL)
if(NOT RONDO_SANITIZE)  # see rondo
  target_link_options(rondo_nccl PRIVATE -Wl,-z,defs)
endif()
set_target_properties(rondo_nccl PROPERTIES OUTPUT_NAME nccl EXPORT_NAME nccl SOVERSION 2 LINK_DEPENDS ${RONDO_NCCL_MAP}
                                            LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/rondo-nccl)
