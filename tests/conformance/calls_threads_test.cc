// Variable counts, messages between two ranks, mixed types and promises, with ranks as threads.
// labels: unit tsan
// timeout: 300
#include "conformance/mixed_types_suite.h"
#include "conformance/point_to_point_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Ranks, VariableCountsTest, ::testing::Values(World::kThreads));
INSTANTIATE_TEST_SUITE_P(Ranks, PointToPoint, ::testing::Values(World::kThreads));
INSTANTIATE_TEST_SUITE_P(Ranks, MixedTypes, ::testing::Values(World::kThreads));

}  // namespace rondo::testing
