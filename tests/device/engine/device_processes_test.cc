// Communicators of device memory with processes as ranks: by streams on a shared device, by the interpreter on separate
// devices, and through host memory.
// labels: mp
// timeout: 240
// again with: FAKE_CUDA=queues=32,operations=16,late,delay_us=50
// links: host_kernels
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "conformance/conformance_cases.h"
#include "protocol/spin.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

std::vector<Case> processes_sample(int nranks) {
  std::vector<Case> cases;
  size_t i = 0;
  for (const Case& c : product_cases(nranks, Memory::kDevice))
    if (c.count_elems <= 40'000 && ++i % 9 == 0) cases.push_back(c);
  return cases;
}

// Each rank's process uses the fake device `rank % devices` of one machine.
void conform_processes(const FakeMachine& machine, int nranks, const std::string& settings) {
  EmulatedCuda cuda(machine);
  const int devices = static_cast<int>(machine.devices.size());
  Config config = device_config(settings);
  config.device = devices == 1 ? 0 : -1;
  const std::vector<Case> cases = processes_sample(nranks);
  const DataTables tables(nranks, 42, conformance_dtypes(), conformance_ops());
  const uint64_t buffer_bytes = largest_buffer_bytes(cases, nranks);
  SpawnOptions options;
  options.config.deadline_s = 60;
  options.deadline_s = 200;
  spawn(
      World::kProcesses, nranks,
      [&](Communicator& host) -> Status {
        Config mine = config;
        mine.device = host.rank() % devices;
        RONDO_TRY_ASSIGN(auto comm, host.split(0, host.rank(), mine));
        CaseRunner runner(*comm, tables);
        RONDO_TRY(runner.open(Memory::kDevice, buffer_bytes));
        for (const Case& c : cases) RONDO_TRY(runner.run(c));
        EXPECT_EQ(runner.num_refused(), 0);
        EXPECT_GT(static_cast<int>(cases.size()), 3 * runner.num_unreachable());
        return Status();
      },
      options);
}

void conform_processes(int devices, int nranks, const std::string& settings) {
  conform_processes(FakeMachine::uniform(devices), nranks, settings);
}

TEST(DeviceProcessesTest, StreamsOnOneDevice) {
  for (const int nranks : {2, 3}) conform_processes(1, nranks, "");
}
TEST(DeviceProcessesTest, InterpreterOnDevicesOfTheirOwn) { conform_processes(3, 3, "device_blocks = -6"); }
TEST(DeviceProcessesTest, InterpreterOnLinkedDevices) {
  const FakeNvml nvml(linked_devices(3));
  conform_processes(fake_machine(linked_devices(3)), 3, "device_blocks = -6");
}
TEST(DeviceProcessesTest, ThroughHostMemory) { conform_processes(2, 2, "p2p_level = loc"); }

// Small tests of the link from device 0 to device 1 pass: only its first page works.
TEST(DeviceProcessesTest, DataOfALossyLinkGoesThroughHostMemory) {
  const FakeNvml nvml(linked_devices(2));
  FakeMachine machine = fake_machine(linked_devices(2));
  machine.peers[0][1].lossy = true;
  EmulatedCuda cuda(machine);
  spawn_processes(2, [&](Communicator& host) -> Status {
    Config config = device_config();
    config.device = host.rank();
    config.deadline_s = 10;
    RONDO_TRY_ASSIGN(auto comm, host.split(0, host.rank(), config));
    constexpr uint64_t kElems = 300'000;
    RONDO_TRY_ASSIGN(void* const memory, comm->alloc(kElems * sizeof(float)));
    auto* const data = static_cast<float*>(memory);  // the fake's device memory is host memory
    std::fill_n(data, kElems, static_cast<float>(comm->rank() + 1));
    CallOptions ring;  // its messages go to memory of the next rank
    ring.algorithm = "ring";
    Work work;
    RONDO_TRY(comm->all_reduce(memory, memory, kElems, Dtype::kFloat32, Op::kSum, &ring, &work));
    RONDO_TRY(work.wait());
    EXPECT_EQ(std::count(data, data + kElems, 3.0f), static_cast<ptrdiff_t>(kElems));
    return Status();
  });
}

// Two of four ranks share each device.
TEST(DeviceProcessesTest, TwoOnEachOfTwoDevices) { conform_processes(2, 4, ""); }

TEST(DeviceProcessesTest, TheInterpreterIsRefusedWhereProcessesShareADevice) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  spawn_processes(2, [&](Communicator& host) -> Status {
    Config config = device_config("device_engine = interpreter");
    config.device = 0;
    const auto made = host.split(0, host.rank(), config);
    EXPECT_TRUE(fails_with(made.status(), StatusCode::kUnsupported, {"processes share device"}));
    return Status();
  });
}

// A rank dies during the others' calls: these soon end with its name, with either engine.
void loses_a_rank(int devices) {
  EmulatedCuda cuda(FakeMachine::uniform(devices));
  SpawnOptions options;
  options.may_die = {2};
  Shared<SharedCounter> num_ready;  // ranks still in the first call must not learn of the death there
  spawn(
      World::kProcesses, 3,
      [&](Communicator& host) -> Status {
        Config config = device_config();
        config.device = host.rank() % devices;
        RONDO_TRY_ASSIGN(auto comm, host.split(0, host.rank(), config));
        RONDO_TRY_ASSIGN(void* memory, comm->alloc(1 << 20));
        Work first;
        RONDO_TRY(comm->all_reduce(memory, memory, 1000, Dtype::kFloat32, Op::kSum, nullptr, &first));
        RONDO_TRY(first.wait());
        num_ready->add();
        EXPECT_TRUE(num_ready->wait_at_least(3, 30));
        if (comm->rank() == 2) kill(getpid(), SIGKILL);
        const uint64_t since = rondo::monotonic_ns();
        Work work;
        Status s = comm->all_reduce(memory, memory, 1 << 17, Dtype::kFloat32, Op::kSum, nullptr, &work);
        if (s.ok()) s = work.wait();
        EXPECT_LT(rondo::monotonic_ns() - since, 3'000'000'000u);
        EXPECT_TRUE(s.code() == StatusCode::kPeerLost || s.code() == StatusCode::kAborted) << s.to_string();
        EXPECT_FALSE(comm->error().ok());
        return Status();
      },
      options);
}

TEST(DeviceProcessesTest, AKilledRankOnASharedDevice) { loses_a_rank(1); }
TEST(DeviceProcessesTest, AKilledRankWithADeviceOfItsOwn) { loses_a_rank(3); }

}  // namespace
}  // namespace rondo::testing
