// On a real device shared by several processes: the stream engine, conformance and random calls; a killed rank.
// labels: gpu
// timeout: 400
// separate
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "conformance/conformance_cases.h"
#include "gpu/gpu.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

void conform(int nranks, size_t num_cases) {
  const std::vector<Case> all = product_cases(nranks);
  std::vector<Case> cases;
  for (size_t i = 0; i < num_cases; ++i) cases.push_back(all[i * 7919 % all.size()]);
  run_cases(World::kProcesses, nranks, Memory::kDevice, cases, gpu_config(nranks));
}

TEST(DeviceProcessesGpuTest, TenThousandRandomCalls) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 4, 8}) conform(nranks, 3400);
}
TEST(DeviceProcessesGpuTest, Megabytes) {
  RONDO_NEEDS_GPU();
  run_cases(World::kProcesses, 2, Memory::kDevice, large_cases(2, 32 << 20), gpu_config(2));
}
TEST(DeviceProcessesGpuTest, AKilledRank) {
  RONDO_NEEDS_GPU();
  SpawnOptions options;
  options.config = gpu_config(3);
  options.may_die = {2};
  spawn_processes(
      3,
      [&](Communicator& comm) -> Status {
        RONDO_TRY_ASSIGN(void* memory, comm.alloc(1 << 20));
        Work first;
        RONDO_TRY(comm.all_reduce(memory, memory, 1000, Dtype::kFloat32, Op::kSum, nullptr, &first));
        RONDO_TRY(first.wait());
        if (comm.rank() == 2) kill(getpid(), SIGKILL);
        Work work;
        Status s = comm.all_reduce(memory, memory, 1 << 17, Dtype::kFloat32, Op::kSum, nullptr, &work);
        if (s.ok()) s = work.wait();
        EXPECT_TRUE(s.code() == StatusCode::kPeerLost || s.code() == StatusCode::kAborted) << s.to_string();
        return Status();
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
