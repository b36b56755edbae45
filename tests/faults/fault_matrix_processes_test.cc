// The fault matrix for ranks as processes (shm): every collective and algorithm with deaths, stops and other faults at
// chosen messages.
// labels: mp
// timeout: 300
#include "faults/fault_matrix.h"

namespace rondo::testing {
namespace {

std::vector<FaultCase> kills() {
  std::vector<FaultCase> all = cases_of_every_row(World::kProcesses, Fault::kKill, {Moment::kFirst}, 0);
  append(all, cases_of_every_row(World::kProcesses, Fault::kKill, {Moment::kMiddle}, 2));
  append(all, cases_of_every_row(
                  World::kProcesses, Fault::kKill,
                  {Moment::kLast, Moment::kOpening, Moment::kLast, Moment::kBeforeFirst, Moment::kBetween}, 1));
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kill, FaultMatrix, ::testing::ValuesIn(kills()), fault_case_name);

std::vector<FaultCase> process_stops() {
  const std::vector<Moment> moments{Moment::kFirst,  Moment::kMiddle,      Moment::kLast,
                                    Moment::kOpening, Moment::kBeforeFirst, Moment::kBetween};
  return cases_of_every_row(World::kProcesses, Fault::kFreeze, moments, 3);
}
INSTANTIATE_TEST_SUITE_P(Freeze, FaultMatrix, ::testing::ValuesIn(process_stops()), fault_case_name);

std::vector<FaultCase> process_full_pools() {
  std::vector<FaultCase> all = cases_of_every_row(World::kProcesses, Fault::kMemory, {Moment::kOpening}, 1);
  let_victims_write(all);
  return all;
}
INSTANTIATE_TEST_SUITE_P(ProcessesMemory, FaultMatrix, ::testing::ValuesIn(process_full_pools()), fault_case_name);

std::vector<FaultCase> process_delays() {
  return cases_of_every_row(World::kProcesses, Fault::kDelay, {Moment::kFirst, Moment::kMiddle, Moment::kLast}, 2);
}
INSTANTIATE_TEST_SUITE_P(ProcessesDelay, FaultMatrix, ::testing::ValuesIn(process_delays()), fault_case_name);

}  // namespace
}  // namespace rondo::testing
