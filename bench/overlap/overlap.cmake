# bench_overlap: the overlap of fsdp's communication and computing, for bench/measure_overlap. Uses the tests' link.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(bench_overlap ${CMAKE_CURRENT_LIST_DIR}/overlap.cc ${CMAKE_CURRENT_LIST_DIR}/link.cc
                             ${CMAKE_CURRENT_SOURCE_DIR}/startup/ranks.cc
                             ${PROJECT_SOURCE_DIR}/tests/support/link_transport.cc)
target_include_directories(bench_overlap PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(bench_overlap PRIVATE rondo_internal CLI11::CLI11 nlohmann_json::nlohmann_json)
