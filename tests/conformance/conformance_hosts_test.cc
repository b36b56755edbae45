// Conformance over UCX and TCP: ranks of one host that use only these, and ranks on several hosts (2x2, 3x2).
// labels: mp
// timeout: 300
// again with: RONDO_TRANSPORT=shm+ucx
// separate
#include <cstdlib>

#include "conformance/conformance_suite.h"
#include "conformance/point_to_point_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

// First over TCP, then over UCX.
World alone() { return std::getenv("RONDO_TRANSPORT") != nullptr ? World::kUcx : World::kTcp; }

INSTANTIATE_TEST_SUITE_P(OneNet, Conformance, ::testing::Combine(::testing::Values(alone()), ::testing::Values(3)),
                         conformance_name);
INSTANTIATE_TEST_SUITE_P(Hosts, Conformance,
                         ::testing::Combine(::testing::Values(World::kHosts), ::testing::Values(4, 6)),
                         conformance_name);
INSTANTIATE_TEST_SUITE_P(Hosts, VariableCountsTest, ::testing::Values(alone(), World::kHosts));
INSTANTIATE_TEST_SUITE_P(Hosts, PointToPoint, ::testing::Values(alone(), World::kHosts));

}  // namespace rondo::testing
