// Ranks on several pretended hosts, as threads.
// labels: unit tsan
// timeout: 300
#include "conformance/hosts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, HostConformance,
                         ::testing::Combine(::testing::Values(World::kThreads),
                                            ::testing::Values("2x2", "0,1,0,1", "3x2", "2x3", "3+2", "1+4",
                                                              "0,1,0,2,1,0,2")),
                         host_conformance_name);
INSTANTIATE_TEST_SUITE_P(Threads, Hosts, ::testing::Values(World::kThreads),
                         [](const auto& info) { return world_name(info.param); });

}  // namespace rondo::testing
