// Split and finalize, with ranks as processes.
// labels: mp
// timeout: 180
// again with: RONDO_TEST_FULL_MESH=3
#include "api/split_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Split, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });
INSTANTIATE_TEST_SUITE_P(Processes, Finalize, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
