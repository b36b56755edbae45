// Ranks that make different calls, with ranks as threads.
// labels: unit tsan
// timeout: 240
#include "api/mismatch_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Mismatch, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
