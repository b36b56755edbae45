// Communicators of device memory with ranks on several hosts: pinned memory at both ends, the network in between, and
// the devices' own links within a host.
// labels: mp
// again with: RONDO_TRANSPORT=shm+ucx
// timeout: 300
// links: host_kernels
// alone
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "conformance/conformance_cases.h"
#include "device/engine/device_floats.h"
#include "protocol/spin.h"
#include "support/emulated_cuda.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

class DeviceHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  }
};

// Each rank has its own device, or all ranks share one.
Expected<std::unique_ptr<Communicator>> on_devices(Communicator& host, int devices, const std::string& settings = {}) {
  Config config = device_config(settings);
  config.device = host.rank() % devices;
  return host.split(0, host.rank(), config);
}

void conform(World world, int nranks, int devices, const std::string& settings, size_t every) {
  EmulatedCuda cuda(FakeMachine::uniform(devices));
  std::vector<Case> cases;
  size_t i = 0;
  for (const Case& c : product_cases(nranks))
    if (c.count_elems <= 40'000 && ++i % every == 0) cases.push_back(c);
  const DataTables tables(nranks, 42, conformance_dtypes(), conformance_ops());
  const uint64_t buffer_bytes = largest_buffer_bytes(cases, nranks);
  SpawnOptions options;
  options.config.deadline_s = 60;
  options.deadline_s = 200;
  spawn(
      world, nranks,
      [&](Communicator& host) -> Status {
        RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices, settings));
        CaseRunner runner(*comm, tables);
        RONDO_TRY(runner.open(Memory::kDevice, buffer_bytes));
        for (const Case& c : cases) RONDO_TRY(runner.run(c));
        EXPECT_GT(static_cast<int>(cases.size()), 3 * runner.num_unreachable());
        return Status();
      },
      options);
}

TEST_F(DeviceHosts, InterpreterOnTwoHosts) {
  conform(World::kHosts, 2, 2, "device_blocks = -6", 9);
  conform(World::kHosts, 4, 4, "device_blocks = -6", 19);
}
TEST_F(DeviceHosts, InterpreterOnThreeHosts) { conform(World::kHosts, 6, 6, "device_blocks = -3", 41); }
TEST_F(DeviceHosts, StreamsOnTwoHosts) {
  conform(World::kHosts, 2, 1, "", 9);
  conform(World::kHosts, 4, 4, "device_engine = stream", 19);
}
TEST_F(DeviceHosts, StreamsOnThreeHosts) { conform(World::kHosts, 6, 2, "", 41); }
TEST_F(DeviceHosts, ByTheNetworkAloneOnOneHost) {
  conform(World::kUcx, 3, 3, "device_blocks = -6", 19);
  conform(World::kTcp, 2, 1, "", 19);
}

// Every algorithm that can be requested by name, so that multicasts cross too.
TEST_F(DeviceHosts, EveryAlgorithmOfAnAllReduce) {
  for (const int devices : {4, 1}) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    spawn(World::kHosts, 4, [&](Communicator& host) -> Status {
      for (const char* algorithm : {"ring", "tree", "one_shot", "hierarchical", "hierarchical_one_shot"}) {
        RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices, fmt::format("algo = {}", algorithm)));
        use_device(*comm);
        for (const size_t count : {1u, 997u, 300'007u}) {
          Floats a(*comm, count);
          a.set_simple(comm->rank());
          Stream stream;
          const CallOptions options = stream.options();
          const Status s = comm->all_reduce(a.data(), a.data(), count, Dtype::kFloat32, Op::kSum, &options);
          EXPECT_TRUE(is_ok(s)) << algorithm << ' ' << count;
          stream.wait();
          EXPECT_TRUE(a.holds_simple_sum(4)) << algorithm << ' ' << count;
        }
        RONDO_TRY(comm->error());
      }
      return Status();
    });
  }
}

TEST_F(DeviceHosts, AGroupOfCallsAndMessagesOnTwoCommunicators) {
  for (const int devices : {4, 1}) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    spawn(World::kHosts, 4, [&](Communicator& host) -> Status {
      RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices));
      RONDO_TRY_ASSIGN(auto other, on_devices(host, devices));
      use_device(*comm);
      const int n = comm->size();
      const Rank next = (comm->rank() + 1) % n, last = (comm->rank() + n - 1) % n;
      Floats a(*comm, 30'001), b(*comm, 17), sent(*comm, 100'000), got(*comm, 100'000);
      for (int round = 0; round < 4; ++round) {
        a.set_simple(comm->rank());
        b.set_simple(comm->rank());
        sent.set(std::vector<float>(sent.size(), static_cast<float>(10 * comm->rank() + round)));
        Stream stream;
        const CallOptions options = stream.options();
        group_start();
        RONDO_TRY(comm->all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
        RONDO_TRY(comm->recv(got.data(), got.size(), Dtype::kFloat32, last, &options));
        RONDO_TRY(other->all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &options));
        RONDO_TRY(comm->send(sent.data(), sent.size(), Dtype::kFloat32, next, &options));
        RONDO_TRY(group_end());
        stream.wait();
        EXPECT_TRUE(a.holds_simple_sum(n));
        EXPECT_TRUE(b.holds_simple_sum(n));
        EXPECT_EQ(got.get().back(), static_cast<float>(10 * last + round));
      }
      return comm->error();
    });
  }
}

// The library does not see a graph's launch: the messages of its calls between hosts are still carried.
TEST_F(DeviceHosts, CapturedCallsReplay) {
  for (const int devices : {2, 1}) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    spawn(World::kHosts, 2, [&](Communicator& host) -> Status {
      RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices));
      use_device(*comm);
      Floats a(*comm, 3000), b(*comm, 3000);
      a.set_simple(comm->rank());
      Stream stream;
      const CallOptions options = stream.options();
      EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
      EXPECT_EQ(cuda::driver()->memcpy_async(at(b.data()), at(a.data()), 3000 * sizeof(float), stream.get()), 0);
      const Status s = comm->all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &options);
      cuda::Graph graph = nullptr;
      EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graph), 0);
      RONDO_TRY(s);
      for (int round = 0; round < 20; ++round) {
        EXPECT_EQ(cuda.fake().launch_graph(graph, stream.get()), 0);
        stream.wait();
        EXPECT_TRUE(b.holds_simple_sum(2)) << round;
      }
      EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
      return comm->error();
    });
  }
}

TEST_F(DeviceHosts, ARanksDeathEndsTheOthersCallsWithItsName) {
  for (const int devices : {4, 1}) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    SpawnOptions options;
    options.may_die = {2};
    Shared<SharedCounter> num_ready;
    spawn(
        World::kHosts, 4,
        [&](Communicator& host) -> Status {
          RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices));
          RONDO_TRY_ASSIGN(void* memory, comm->alloc(1 << 20));
          Work first;
          RONDO_TRY(comm->all_reduce(memory, memory, 1000, Dtype::kFloat32, Op::kSum, nullptr, &first));
          RONDO_TRY(first.wait());
          num_ready->add();
          EXPECT_TRUE(num_ready->wait_at_least(4, 30));
          if (comm->rank() == 2) kill(getpid(), SIGKILL);
          const uint64_t since = monotonic_ns();
          Work work;
          Status s = comm->all_reduce(memory, memory, 1 << 17, Dtype::kFloat32, Op::kSum, nullptr, &work);
          if (s.ok()) s = work.wait();
          EXPECT_LT(monotonic_ns() - since, 3'000'000'000u);
          EXPECT_TRUE(s.code() == StatusCode::kPeerLost || s.code() == StatusCode::kAborted) << s.to_string();
          EXPECT_FALSE(comm->error().ok());
          return Status();
        },
        options);
  }
}

// A missing rank: the deadline ends the others' calls with its name.
TEST_F(DeviceHosts, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  for (const int devices : {2, 1}) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    Shared<SharedCounter> num_ended;
    spawn(World::kHosts, 2, [&](Communicator& host) -> Status {
      RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices));
      use_device(*comm);
      Floats a(*comm, 1000);
      Work first;
      RONDO_TRY(comm->all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, nullptr, &first));
      RONDO_TRY(first.wait());
      if (comm->rank() == 1) {
        EXPECT_TRUE(num_ended->wait_at_least(1, 30));
        return Status();
      }
      CallOptions options;
      options.deadline_s = 1;
      Work work;
      Status s = comm->all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options, &work);
      if (s.ok()) s = work.wait();
      EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"rank 1"}));
      num_ended->add();
      return Status();
    });
  }
}

}  // namespace
}  // namespace rondo::testing
