// The fault matrix for ranks as threads (inproc): a single thread does not die, but it can stop, abort, be late, and
// send damaged messages.
//
// labels: unit mp
// timeout: 300
// alone
#include "faults/fault_matrix.h"

namespace rondo::testing {
namespace {

const std::vector<Moment> kMessages{Moment::kFirst, Moment::kMiddle, Moment::kLast};

std::vector<FaultCase> thread_stops() {
  return cases_of_every_row(
      World::kThreads, Fault::kStop,
      {Moment::kFirst, Moment::kMiddle, Moment::kLast, Moment::kOpening, Moment::kBeforeFirst, Moment::kBetween}, 0);
}
INSTANTIATE_TEST_SUITE_P(Stop, FaultMatrix, ::testing::ValuesIn(thread_stops()), fault_case_name);

std::vector<FaultCase> aborts() { return cases_of_every_row(World::kThreads, Fault::kAbort, kMessages, 1); }
INSTANTIATE_TEST_SUITE_P(Abort, FaultMatrix, ::testing::ValuesIn(aborts()), fault_case_name);

std::vector<FaultCase> thread_delays() { return cases_of_every_row(World::kThreads, Fault::kDelay, kMessages, 0); }
INSTANTIATE_TEST_SUITE_P(ThreadsDelay, FaultMatrix, ::testing::ValuesIn(thread_delays()), fault_case_name);

std::vector<FaultCase> thread_full_pools() {
  std::vector<FaultCase> all = cases_of_every_row(World::kThreads, Fault::kMemory, {Moment::kOpening}, 0);
  let_victims_write(all);
  return all;
}
INSTANTIATE_TEST_SUITE_P(ThreadsMemory, FaultMatrix, ::testing::ValuesIn(thread_full_pools()), fault_case_name);

// Each row with one of the damaged flags, in turn.
std::vector<FaultCase> garbled() {
  constexpr Fault kKinds[] = {Fault::kFingerprint, Fault::kOtherStep, Fault::kLost, Fault::kReordered, Fault::kTwice};
  std::vector<FaultCase> all = cases_of_every_row(World::kThreads, Fault::kNone, kMessages, 2);
  for (size_t i = 0; i < all.size(); ++i) all[i].fault = kKinds[i % std::size(kKinds)];
  return all;
}
INSTANTIATE_TEST_SUITE_P(Garbled, FaultMatrix, ::testing::ValuesIn(garbled()), fault_case_name);

}  // namespace
}  // namespace rondo::testing
