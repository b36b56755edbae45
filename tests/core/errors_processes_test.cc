// Errors and how they are said, with ranks as processes.
// labels: mp
// timeout: 120
#include "core/errors_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Ranks, Errors, ::testing::Values(World::kProcesses),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
