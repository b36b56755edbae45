// Shrink and grow, with ranks as threads.
// labels: unit tsan
// timeout: 180
#include "api/shrink_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Shrink, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });
INSTANTIATE_TEST_SUITE_P(Threads, Grow, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
