// Special values and the order of addition, with ranks as processes.
// labels: mp
// timeout: 120
#include "conformance/numerics_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Numerics, ::testing::Values(World::kProcesses), numerics_name);

}  // namespace rondo::testing
