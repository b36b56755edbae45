// Error messages, with ranks as threads.
// labels: unit tsan
// timeout: 120
#include "api/errors_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Errors, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace rondo::testing
