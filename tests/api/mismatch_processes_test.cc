// Ranks that make different calls, with ranks as processes: over shared memory and over TCP.
// labels: mp
// timeout: 240
#include "api/mismatch_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Mismatch, ::testing::Values(World::kProcesses, World::kTcp),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
