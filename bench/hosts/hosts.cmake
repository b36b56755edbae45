# frame_relay: a switch with a delay, for bench/compare_hosts, from the code of the tests of hosts.
add_executable(frame_relay ${CMAKE_CURRENT_LIST_DIR}/frame_relay.cc ${PROJECT_SOURCE_DIR}/tests/support/frame_relay.cc)
target_include_directories(frame_relay PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(frame_relay PRIVATE rondo_options CLI11::CLI11)
