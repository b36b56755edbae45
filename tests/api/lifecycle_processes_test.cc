// Life of communicators, with ranks as processes.
// labels: mp
// timeout: 120
#include "api/lifecycle_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Lifecycle, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
