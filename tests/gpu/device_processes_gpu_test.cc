// On a real device shared by several processes: the stream engine, conformance and random calls, also through host
// memory and between hosts; a killed rank; memory of another process.
// labels: gpu
// timeout: 400
// separate
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "api/communicator_impl.h"
#include "conformance/conformance_cases.h"
#include "gpu/gpu.h"
#include "support/forked_child.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

void conform(World world, int nranks, size_t num_cases, const std::string& settings = {}) {
  const std::vector<Case> all = product_cases(nranks, Memory::kDevice);
  std::vector<Case> cases;
  for (size_t i = 0; i < num_cases; ++i) cases.push_back(all[i * 7919 % all.size()]);
  run_cases(world, nranks, Memory::kDevice, cases, gpu_config(nranks, settings));
}

// A child exports memory, and its own child opens it. Returns what the driver refuses.
std::string refused_by_ipc() {
  cuda::IpcMemHandle handle{};
  const auto with_device = [](const auto& body) -> Status {
    RONDO_TRY_ASSIGN(const auto context, cuda::PrimaryContext::retain(0));
    cuda::CurrentContext current(context.get());
    return body(*cuda::driver());
  };
  return in_child([&]() -> std::string {
    const std::string opened = "opened";
    int ends[2], back[2];
    if (pipe(ends) != 0 || pipe(back) != 0) return "no pipe";
    const pid_t importer = fork();  // before this process uses the driver
    if (importer == 0) {
      alarm(30);
      if (read(ends[0], &handle, sizeof handle) != sizeof handle) _exit(1);
      const Status s = with_device([&](const cuda::Driver& d) -> Status {
        cuda::DevicePtr at = 0;
        RONDO_TRY(cuda::check(d.ipc_open_mem_handle(&at, handle, cuda::kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
        return cuda::check(d.ipc_close_mem_handle(at), "cuIpcCloseMemHandle");
      });
      const std::string text = s.ok() ? opened : s.to_string();
      (void)!write(back[1], text.data(), text.size());
      _exit(0);
    }
    close(back[1]);
    char text[512] = {};
    const Status s = with_device([&](const cuda::Driver& d) -> Status {
      RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(1 << 20));
      RONDO_TRY(cuda::check(d.ipc_get_mem_handle(&handle, memory.get()), "cuIpcGetMemHandle"));
      (void)!write(ends[1], &handle, sizeof handle);
      (void)!read(back[0], text, sizeof text - 1);
      return {};
    });
    kill(importer, SIGKILL);
    waitpid(importer, nullptr, 0);
    return !s.ok() ? s.to_string() : text == opened ? "" : text[0] != 0 ? text : "the importing process ended early";
  });
}

TEST(DeviceProcessesGpuTest, IpcReachesMemoryOfAnotherProcess) {
  RONDO_NEEDS_GPU();
  if (const std::string refused = refused_by_ipc(); !refused.empty()) GTEST_SKIP() << "no IPC here: " << refused;
  SpawnOptions options;
  options.config = gpu_config(2);
  spawn_processes(
      2,
      [&](Communicator& comm) -> Status {
        EXPECT_FALSE(impl_of(comm).device()->transport().through_host_somewhere());
        return Status();
      },
      options);
}
TEST(DeviceProcessesGpuTest, TenThousandRandomCalls) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 4, 8}) conform(World::kProcesses, nranks, full_or_quick(3400, 20));
}
TEST(DeviceProcessesGpuTest, ThroughHostMemory) {
  RONDO_NEEDS_GPU();
  conform(World::kProcesses, 3, full_or_quick(300, 20), "p2p_level = loc");
}
// The data go through pinned memory and TCP. (The interpreter needs a device for each process.)
TEST(DeviceProcessesGpuTest, Hosts) {
  RONDO_NEEDS_GPU();
  if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  conform(World::kHosts, 2, full_or_quick(150, 20), "transport = tcp");
}
TEST(DeviceProcessesGpuTest, Megabytes) {
  RONDO_NEEDS_GPU();
  run_cases(World::kProcesses, 2, Memory::kDevice, large_cases(2, full_or_quick(32 << 20, 64 << 10)), gpu_config(2));
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
