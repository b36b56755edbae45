// Asynchronous work and groups with ranks as processes.
// labels: mp
// timeout: 120
#include "api/async_suite.h"
#include "api/work_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Async, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
