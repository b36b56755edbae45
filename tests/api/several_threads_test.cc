// Several communicators at once, with ranks as threads.
// labels: unit tsan
// timeout: 180
#include "api/several_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Several, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
