// Conformance with ranks as processes.
// labels: mp
// timeout: 300
#include "conformance/conformance_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Conformance,
                         ::testing::Combine(::testing::Values(World::kProcesses),
                                            ::testing::ValuesIn(conformance_rank_counts())),
                         conformance_name);

}  // namespace rondo::testing
