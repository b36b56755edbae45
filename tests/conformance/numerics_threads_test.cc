// Special values and the order of addition, with ranks as threads.
// labels: unit tsan
// timeout: 120
#include "conformance/numerics_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Numerics, ::testing::Values(World::kThreads), numerics_name);

}  // namespace rondo::testing
