// labels: mp
// timeout: 120
#include "fsdp/pass_suite.h"

namespace rondo::fsdp::testing {

INSTANTIATE_TEST_SUITE_P(Processes, FsdpPass, ::testing::Values(World::kProcesses));

}  // namespace rondo::fsdp::testing
