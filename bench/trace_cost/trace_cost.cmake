# bench_trace_cost: the cost of tracing, on against off.
add_executable(bench_trace_cost ${CMAKE_CURRENT_LIST_DIR}/trace_cost.cc)
target_link_libraries(bench_trace_cost PRIVATE rondo_internal rondo_reports nlohmann_json::nlohmann_json)
