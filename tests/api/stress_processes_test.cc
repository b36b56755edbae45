// Random operations with ranks as processes.
// labels: mp
// timeout: 240
#include "api/stress_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Processes, Stress,
                         ::testing::Combine(::testing::Values(World::kProcesses),
                                            ::testing::ValuesIn(stress_rank_counts())),
                         stress_name);

}  // namespace rondo::testing
