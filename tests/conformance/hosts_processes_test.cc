// Ranks on several pretended hosts, as processes.
// labels: mp
// timeout: 300
#include "conformance/hosts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, HostConformance,
                         ::testing::Combine(::testing::Values(World::kProcesses),
                                            ::testing::Values("2x2", "0,1,0,0,1")),
                         host_conformance_name);
INSTANTIATE_TEST_SUITE_P(Processes, Hosts, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return world_name(info.param); });

}  // namespace rondo::testing
