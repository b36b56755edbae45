// Random operations with ranks as threads.
// labels: unit tsan
// timeout: 240
#include "api/stress_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Stress,
                         ::testing::Combine(::testing::Values(World::kThreads),
                                            ::testing::ValuesIn(stress_rank_counts())),
                         stress_name);

}  // namespace rondo::testing
