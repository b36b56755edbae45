// labels: unit tsan
// timeout: 120
#include "fsdp/engine_suite.h"

namespace rondo::fsdp::testing {

INSTANTIATE_TEST_SUITE_P(Threads, FsdpEngine, ::testing::Values(World::kThreads));

}  // namespace rondo::fsdp::testing
