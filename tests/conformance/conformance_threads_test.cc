// Conformance with ranks as threads.
// labels: unit tsan
// timeout: 600
#include "conformance/conformance_suite.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         ::testing::Combine(::testing::Values(World::kThreads),
                                            ::testing::ValuesIn(conformance_rank_counts())),
                         conformance_name);

}  // namespace rondo::testing
