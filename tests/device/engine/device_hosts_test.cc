// Communicators of device memory with ranks on several hosts: pinned memory at both ends, the network in between, and
// the devices' own links within a host.
// labels: mp
// again with: RONDO_TRANSPORT=shm+ucx
// timeout: 300
// again with: FAKE_CUDA=queues=32,operations=16,late,delay_us=50
// links: host_kernels
// alone
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "conformance/conformance_cases.h"
#include "device/engine/device_floats.h"
#include "protocol/spin.h"
#include "rondo/trace.h"
#include "support/emulated_cuda.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/test_hosts.h"
#include "trace/export.h"
#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"

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

void conform(World world, int nranks, const FakeMachine& machine, const std::string& settings, size_t every) {
  EmulatedCuda cuda(machine);
  const int devices = static_cast<int>(machine.devices.size());
  std::vector<Case> cases;
  size_t i = 0;
  for (const Case& c : product_cases(nranks, Memory::kDevice))
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
        EXPECT_LT(runner.num_refused(), static_cast<int>(cases.size()) / 4);
        return Status();
      },
      options);
}
void conform(World world, int nranks, int devices, const std::string& settings, size_t every) {
  conform(world, nranks, FakeMachine::uniform(devices), settings, every);
}

TEST_F(DeviceHosts, InterpreterOnTwoHosts) {
  conform(World::kHosts, 2, 2, "device_blocks = -6", 9);
  conform(World::kHosts, 4, 4, "device_blocks = -6", 19);
}
TEST_F(DeviceHosts, InterpreterOnThreeHosts) { conform(World::kHosts, 6, 6, "device_blocks = -3", 41); }
// Connections inside a host have slots of LL or LL128, those between hosts rings.
TEST_F(DeviceHosts, LlOnTwoAndThreeHosts) {
  conform(World::kHosts, 4, 4, "device_blocks = -6\nproto = ll", 19);
  conform(World::kHosts, 6, 6, "device_blocks = -3\nproto = ll", 41);
}
TEST_F(DeviceHosts, Ll128OnTwoAndThreeHosts) {
  for (const int nranks : {4, 6}) {
    const FakeNvml nvml(linked_devices(nranks));
    conform(World::kHosts, nranks, fake_machine(linked_devices(nranks)), "device_blocks = -3\nproto = ll128", 41);
  }
}
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
void sum_by_every_algorithm(int nranks, int devices, const std::string& settings) {
  EmulatedCuda cuda(FakeMachine::uniform(devices));
  spawn(World::kHosts, nranks, [&](Communicator& host) -> Status {
    for (const char* algorithm : {"ring", "tree", "one_shot", "hierarchical", "hierarchical_one_shot"}) {
      RONDO_TRY_ASSIGN(auto comm, on_devices(host, devices, fmt::format("algo = {}\n{}", algorithm, settings)));
      use_device(*comm);
      for (const size_t count : {0u, 1u, 997u, 300'007u}) {
        Floats a(*comm, count);
        a.set_simple(comm->rank());
        Stream stream;
        const CallOptions options = stream.options();
        const Status s = comm->all_reduce(a.data(), a.data(), count, Dtype::kFloat32, Op::kSum, &options);
        EXPECT_TRUE(is_ok(s)) << algorithm << ' ' << count;
        stream.wait();
        EXPECT_TRUE(a.holds_simple_sum(nranks)) << algorithm << ' ' << count;
      }
      RONDO_TRY(comm->error());
    }
    return Status();
  });
}
TEST_F(DeviceHosts, EveryAlgorithmOfAnAllReduce) {
  for (const int devices : {4, 1}) sum_by_every_algorithm(4, devices, "");
}
TEST_F(DeviceHosts, EveryAlgorithmOfAnAllReduceByLl) {
  sum_by_every_algorithm(4, 4, "proto = ll");
  sum_by_every_algorithm(6, 6, "device_blocks = -6\nproto = ll");
}

// A short call uses LL inside hosts, a message between two ranks if both are on one host.
TEST_F(DeviceHosts, ShortCallsAndMessagesUseLlInsideHosts) {
  EmulatedCuda cuda(FakeMachine::uniform(4));
  spawn(World::kHosts, 4, [&](Communicator& host) -> Status {
    RONDO_TRY_ASSIGN(auto comm, on_devices(host, 4, "algo = hierarchical_one_shot"));
    use_device(*comm);
    const std::string plan = comm->explain_plan(Collective::kAllReduce, 997, Dtype::kFloat32, Op::kSum);
    EXPECT_NE(plan.find(" ll inside hosts"), std::string::npos) << plan;
    const std::string longer = comm->explain_plan(Collective::kAllReduce, 16 << 20, Dtype::kFloat32, Op::kSum);
    EXPECT_NE(longer.find(" simple, "), std::string::npos) << longer;
    const int n = comm->size();
    for (const size_t count : {1u, 997u, 5003u, 20'011u}) {
      Floats a(*comm, count), sent(*comm, count), got(*comm, count * static_cast<size_t>(n));
      for (int round = 0; round < 20; ++round) {
        a.set_simple(comm->rank());
        sent.set(std::vector<float>(count, static_cast<float>(10 * comm->rank() + round)));
        Stream stream;
        const CallOptions options = stream.options();
        group_start();
        for (Rank peer = 0; peer < n; ++peer) {
          RONDO_TRY(comm->send(sent.data(), count, Dtype::kFloat32, peer, &options));
          RONDO_TRY(comm->recv(got.data() + static_cast<size_t>(peer) * count, count, Dtype::kFloat32, peer, &options));
        }
        RONDO_TRY(group_end());
        RONDO_TRY(comm->all_reduce(a.data(), a.data(), count, Dtype::kFloat32, Op::kSum, &options));
        stream.wait();
        EXPECT_TRUE(a.holds_simple_sum(n)) << count;
        const std::vector<float> all = got.get();
        for (size_t i = 0; i < all.size(); ++i)
          if (all[i] != static_cast<float>(10 * (i / count) + static_cast<size_t>(round)))
            return Status(StatusCode::kInternal, fmt::format("{} of {}: {}", i, count, all[i]));
      }
    }
    return comm->error();
  });
}

// Traces name the form of each connection. An instruction that receives from another host waits for data.
TEST_F(DeviceHosts, TracesOfLlNameTheRingsBetweenHosts) {
  TemporaryFolder folder;
  EmulatedCuda cuda(FakeMachine::uniform(4));
  spawn(World::kHosts, 4, [&](Communicator& host) -> Status {
    RONDO_TRY_ASSIGN(auto comm, on_devices(host, 4, "algo = ring\nproto = ll"));
    use_device(*comm);
    Floats a(*comm, 5003);
    a.set_simple(comm->rank());
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(trace_start(*comm, {folder.path(), 0}));
    RONDO_TRY(comm->all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    EXPECT_TRUE(a.holds_simple_sum(4));
    return trace_stop(*comm);
  });
  const auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 4u);
  int rings = 0, slots = 0;
  for (const TraceFile& f : *files)
    for (const StepRecord& r : f.records) {
      if (r.kind != static_cast<uint64_t>(RecordKind::kStep)) continue;
      for (const TracedConnection& c : f.plans[r.plan].lanes[r.lane][r.pc].recv) {
        const bool crosses = c.writer / 2 != c.reader / 2;
        EXPECT_EQ(c.form, static_cast<uint8_t>(crosses ? ConnectionForm::kRing : ConnectionForm::kWords));
        if (crosses) EXPECT_EQ(r.wait_room_ticks, 0u);
        else EXPECT_EQ(r.wait_data_ticks, 0u);
        ++(crosses ? rings : slots);
      }
    }
  EXPECT_GT(rings, 0);
  EXPECT_GT(slots, 0);
  std::FILE* out = std::tmpfile();
  const auto report = export_chrome(*files, out);
  std::fclose(out);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->unmatched_sends + report->unmatched_recvs, 0u);
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
