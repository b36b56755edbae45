// Direct calls on devices for tests that check a call's way: all cases of direct algorithms, and kernels that are
// watched while they run.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "api/communicator_impl.h"
#include "conformance/case_runner.h"
#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"

namespace rondo::testing {

/// Counters of this process's kernels for calls with a choice.
struct Watched {
  std::atomic<int> chose{0};      // calls of direct programs with a fallback
  std::atomic<int> nowhere{0};    // of these: a buffer of this rank is unreachable
  std::atomic<int> fell_back{0};  // of these: the fallback ran
  void clear() { chose = nowhere = fell_back = 0; }
};
inline Watched watched;

namespace internal {
inline HostKernel watched_kernels[2];
// In these tests each call of a communicator is a separate launch, so word 3 is its choice.
template <int kKernel>
void run_watched(const void* args, uint32_t grid, uint32_t block_threads) {
  watched_kernels[kKernel](args, grid, block_threads);
  const auto& launch = *static_cast<const LaunchArgs*>(args);
  for (uint32_t i = 0; i < launch.num_calls; ++i) {
    const DeviceCall& c = launch.calls()[i];
    if (c.fallback == 0) continue;
    ++watched.chose;
    watched.nowhere += c.in_region == kRegionNowhere || c.out_region == kRegionNowhere ? 1 : 0;
    watched.fell_back += c.comm->meetings[3] != 0 ? 1 : 0;
  }
}
}  // namespace internal

/// Devices with NVLink whose interpreters of floats and copies are watched. Addresses of freed memory are soon reused.
class WatchedCuda {
 public:
  explicit WatchedCuda(int num_devices) : nvml_(linked_devices(num_devices)), cuda_(machine_of(num_devices)) {
    watched.clear();
    const char* const names[] = {"rondo_interpret_float_sum", "rondo_interpret_copy"};
    const HostKernel kernels[] = {&internal::run_watched<0>, &internal::run_watched<1>};
    for (int i = 0; i < 2; ++i) {
      internal::watched_kernels[i] = find_host_kernel(names[i]);
      fake().add_kernel(names[i], {kernels[i], sizeof(LaunchArgs), true});
    }
  }
  FakeCuda& fake() { return cuda_.fake(); }

 private:
  static FakeMachine machine_of(int num_devices) {
    FakeMachine machine = fake_machine(linked_devices(num_devices));
    machine.reuse_addresses = true;
    return machine;
  }
  FakeNvml nvml_;
  EmulatedCuda cuda_;
};

/// Every direct algorithm: no, one, few, ragged elements; in place or not; sums and averages.
inline std::vector<Case> direct_cases(int nranks) {
  std::vector<Case> cases;
  for (const Algorithm& a : all_algorithms()) {
    if (!a.direct) continue;
    for (const uint64_t count : {0, 1, 5, 1009})
      for (const bool in_place : {false, true}) {
        Case c;
        c.algorithm = &a;
        c.collective = a.collective;
        c.op = cases.size() % 3 == 0 ? Op::kAvg : Op::kSum;
        c.count_elems = count;
        c.in_place = in_place;
        c.root = static_cast<Rank>(cases.size() % static_cast<size_t>(nranks));
        c.variant = static_cast<uint32_t>(cases.size() % 5);
        cases.push_back(c);
      }
  }
  return cases;
}
inline uint64_t buffer_bytes(int nranks) { return 1009 * sizeof(float) * static_cast<uint64_t>(nranks); }
inline DataTables direct_tables(int nranks) {
  constexpr Dtype kFloat[] = {Dtype::kFloat32};
  constexpr Op kOps[] = {Op::kSum, Op::kAvg};
  return DataTables(nranks, 42, kFloat, kOps);
}

/// All direct cases on the caller's memory.
inline Status run_direct_cases(Communicator& comm, const DataTables& tables, void* memory) {
  CaseRunner runner(comm, tables);
  RONDO_TRY(runner.open_on(memory, buffer_bytes(comm.size())));
  for (const Case& c : direct_cases(comm.size())) RONDO_TRY(runner.run(c));
  EXPECT_EQ(runner.num_refused(), 0);
  EXPECT_EQ(runner.num_unreachable() != 0, comm.size() == 1);  // a single rank uses a stream
  return {};
}

}  // namespace rondo::testing
