// Variable counts, messages between two ranks, mixed types and promises, with ranks as threads.
// labels: unit tsan
// timeout: 300
#include "conformance/mixed_types_suite.h"
#include "conformance/point_to_point_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, VariableCountsTest, ::testing::Values(World::kThreads));
INSTANTIATE_TEST_SUITE_P(Threads, PointToPoint, ::testing::Values(World::kThreads));
INSTANTIATE_TEST_SUITE_P(Threads, MixedTypes, ::testing::Values(World::kThreads));

}  // namespace rondo::testing
