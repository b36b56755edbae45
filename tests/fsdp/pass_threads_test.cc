// labels: unit tsan
// timeout: 120
#include "fsdp/pass_suite.h"

namespace rondo::fsdp::testing {

INSTANTIATE_TEST_SUITE_P(Threads, FsdpPass, ::testing::Values(World::kThreads));

}  // namespace rondo::fsdp::testing
