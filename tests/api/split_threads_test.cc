// Split and finalize, with ranks as threads.
// labels: unit tsan
// timeout: 180
#include "api/split_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Split, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });
INSTANTIATE_TEST_SUITE_P(Threads, Finalize, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
