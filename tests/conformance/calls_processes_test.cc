// Variable counts, messages between two ranks, mixed types and promises, with ranks as processes.
// labels: mp
// timeout: 300
#include "conformance/mixed_types_suite.h"
#include "conformance/point_to_point_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, VariableCountsTest, ::testing::Values(World::kProcesses));
INSTANTIATE_TEST_SUITE_P(Processes, PointToPoint, ::testing::Values(World::kProcesses));
INSTANTIATE_TEST_SUITE_P(Processes, MixedTypes, ::testing::Values(World::kProcesses));

}  // namespace rondo::testing
