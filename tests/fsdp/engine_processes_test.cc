// labels: mp
// timeout: 120
#include "fsdp/engine_suite.h"

namespace rondo::fsdp::testing {

INSTANTIATE_TEST_SUITE_P(Ranks, FsdpEngine, ::testing::Values(World::kProcesses));

}  // namespace rondo::fsdp::testing
