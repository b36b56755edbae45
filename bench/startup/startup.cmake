# bench_startup: the cost of making communicators.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
add_executable(bench_startup ${CMAKE_CURRENT_LIST_DIR}/startup.cc ${CMAKE_CURRENT_LIST_DIR}/ranks.cc)
target_link_libraries(bench_startup PRIVATE rondo rondo_options rondo_fmt CLI11::CLI11
                      nlohmann_json::nlohmann_json Threads::Threads)
