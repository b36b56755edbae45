# bench_overlap: what fsdp hides behind computing, for bench/measure_overlap.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(bench_overlap ${CMAKE_CURRENT_LIST_DIR}/overlap.cc)
target_link_libraries(bench_overlap PRIVATE rondo rondo_options CLI11::CLI11 nlohmann_json::nlohmann_json
                      Threads::Threads)
