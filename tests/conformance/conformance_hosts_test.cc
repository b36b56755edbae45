// Conformance over UCX: ranks of one host that use nothing else, and ranks on several hosts (2x2, 3x2).
// labels: mp
// timeout: 300
#include "conformance/conformance_suite.h"
#include "conformance/point_to_point_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Ucx, Conformance, ::testing::Combine(::testing::Values(World::kUcx), ::testing::Values(3)),
                         conformance_name);
INSTANTIATE_TEST_SUITE_P(Hosts, Conformance,
                         ::testing::Combine(::testing::Values(World::kHosts), ::testing::Values(4, 6)),
                         conformance_name);
INSTANTIATE_TEST_SUITE_P(Ranks, VariableCountsTest, ::testing::Values(World::kUcx, World::kHosts));
INSTANTIATE_TEST_SUITE_P(Ranks, PointToPoint, ::testing::Values(World::kUcx, World::kHosts));

}  // namespace rondo::testing
