// Direct calls among threads on several devices: any memory of cuMemAlloc is accessed directly, other memory goes
// through staging memory on all ranks.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include "device/engine/direct_calls.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

// Ring, which has three lanes, is what all-reduce falls back to.
Config config_of(const std::string& settings) { return device_config("device_blocks = -6\n" + settings); }

template <class Fn>
void on_linked_devices(int nranks, Fn fn, const std::string& settings = "algo = ring") {
  WatchedCuda cuda(nranks);
  SpawnOptions options;
  options.config = config_of(settings);
  options.config.deadline_s = 30;
  spawn_threads(
      nranks,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        return fn(comm, cuda.fake());
      },
      options);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// Number of calls with elements, on all ranks.
int num_calls(int nranks) {
  int n = 0;
  for (const Case& c : direct_cases(nranks)) n += c.count_elems != 0 ? nranks : 0;
  return n;
}

TEST(DeviceDirectTest, AnyMemoryOfTheDriverIsReached) {
  for (const int nranks : {1, 2, 3, 5}) {
    const DataTables tables = direct_tables(nranks);
    on_linked_devices(nranks, [&](Communicator& comm, FakeCuda&) -> Status {
      RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(CaseRunner::memory_bytes(buffer_bytes(nranks))));
      return run_direct_cases(comm, tables, memory.as());
    });
    EXPECT_EQ(watched.chose, nranks == 1 ? 0 : num_calls(nranks));
    EXPECT_EQ(watched.nowhere, 0);
    EXPECT_EQ(watched.fell_back, 0);
  }
}

TEST(DeviceDirectTest, OneRanksMemoryThatCannotBeSharedSendsAllTheOtherWay) {
  for (const int nranks : {2, 3, 4}) {
    const DataTables tables = direct_tables(nranks);
    on_linked_devices(nranks, [&](Communicator& comm, FakeCuda& fake) -> Status {
      RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(CaseRunner::memory_bytes(buffer_bytes(nranks))));
      if (comm.rank() == nranks - 1) fake.forbid_ipc(memory.get());
      return run_direct_cases(comm, tables, memory.as());
    });
    EXPECT_EQ(watched.chose, num_calls(nranks));
    EXPECT_GT(watched.nowhere, 0);
    EXPECT_LT(watched.nowhere, watched.chose);
    EXPECT_GT(watched.fell_back, watched.nowhere);  // the others too
  }
}

// The same call repeated on reachable and unreachable memory, on changing ranks, with two communicators of the same
// ranks at once.
TEST(DeviceDirectTest, TwoCommunicatorsAndChangingBuffers) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 3001;
  on_linked_devices(kRanks, [&](Communicator& comm, FakeCuda& fake) -> Status {
    RONDO_TRY_ASSIGN(auto other, comm.split(0, comm.rank()));
    RONDO_TRY_ASSIGN(const auto open, cuda::DeviceMemory::make(2 * kCount * sizeof(float)));
    RONDO_TRY_ASSIGN(const auto closed, cuda::DeviceMemory::make(2 * kCount * sizeof(float)));
    fake.forbid_ipc(closed.get());
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    std::vector<float> mine(kCount), expected(kCount), found(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      mine[i] = simple_value(comm.rank(), i);
      expected[i] = simple_sum(kRanks, i);
    }
    CallOptions options;
    options.stream = stream.get();
    options.algorithm = "direct";
    for (int round = 0; round < 12; ++round) {
      float* const data[] = {(round % 4 == comm.rank() ? closed : open).as<float>(),
                             (round % 5 == comm.rank() ? closed : open).as<float>() + kCount};
      for (float* d : data) RONDO_TRY(cuda::upload(stream.get(), at(d), mine.data(), kCount * sizeof(float)));
      group_start();
      RONDO_TRY(comm.all_reduce(data[0], data[0], kCount, Dtype::kFloat32, Op::kSum, &options));
      RONDO_TRY(other->all_reduce(data[1], data[1], kCount, Dtype::kFloat32, Op::kSum, &options));
      RONDO_TRY(group_end());
      EXPECT_EQ(cuda::driver()->stream_synchronize(stream.get()), 0);
      for (float* d : data) {
        EXPECT_EQ(cuda::driver()->memcpy_device_to_host(found.data(), at(d), kCount * sizeof(float)), 0);
        EXPECT_EQ(found, expected) << round;
      }
    }
    RONDO_TRY(other->error());
    return comm.error();
  });
  EXPECT_GT(watched.nowhere, 0);
}

// A buffer's region is looked up when a call is captured. Its replays take the same way.
TEST(DeviceDirectTest, CapturedCalls) {
  constexpr size_t kCount = 2000;
  on_linked_devices(2, [&](Communicator& comm, FakeCuda& fake) -> Status {
    RONDO_TRY_ASSIGN(const auto a, cuda::DeviceMemory::make(kCount * sizeof(float)));
    RONDO_TRY_ASSIGN(const auto b, cuda::DeviceMemory::make(kCount * sizeof(float)));
    if (comm.rank() == 0) fake.forbid_ipc(b.get());
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    std::vector<float> mine(kCount), expected(kCount), found(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      mine[i] = simple_value(comm.rank(), i);
      expected[i] = simple_sum(2, i);
    }
    CallOptions options;
    options.stream = stream.get();
    options.algorithm = "direct";
    EXPECT_EQ(fake.begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
    Status s;
    for (const auto* m : {&a, &b})
      if (s.ok()) s = comm.all_reduce(m->as(), m->as(), kCount, Dtype::kFloat32, Op::kSum, &options);
    cuda::Graph graph = nullptr;
    EXPECT_EQ(fake.end_capture(stream.get(), &graph), 0);
    RONDO_TRY(s);
    for (int round = 0; round < 4; ++round) {
      for (const auto* m : {&a, &b})
        RONDO_TRY(cuda::upload(stream.get(), m->get(), mine.data(), kCount * sizeof(float)));
      EXPECT_EQ(fake.launch_graph(graph, stream.get()), 0);
      EXPECT_EQ(cuda::driver()->stream_synchronize(stream.get()), 0);
      for (const auto* m : {&a, &b}) {
        EXPECT_EQ(cuda::driver()->memcpy_device_to_host(found.data(), m->get(), kCount * sizeof(float)), 0);
        EXPECT_EQ(found, expected) << round;
      }
    }
    EXPECT_EQ(fake.destroy_graph(graph), 0);
    return comm.error();
  });
  EXPECT_EQ(watched.chose, 2 * 2 * 4);
  EXPECT_EQ(watched.fell_back, 2 * 4);
}

TEST(DeviceDirectTest, ExplainNamesBothWays) {
  on_linked_devices(
      2,
      [](Communicator& comm, FakeCuda&) -> Status {
        const std::string why = comm.explain_plan(Collective::kAllReduce, 1 << 20, Dtype::kFloat32, Op::kSum);
        EXPECT_NE(why.find("direct from buffer to buffer"), std::string::npos) << why;
        EXPECT_NE(why.find("when a rank's buffers cannot be reached"), std::string::npos) << why;
        return {};
      },
      "algo = direct");
}

TEST(DeviceDirectTest, CanBeTurnedOff) {
  on_linked_devices(
      2,
      [](Communicator& comm, FakeCuda&) -> Status {
        RONDO_TRY_ASSIGN(void* const memory, comm.alloc(4096));
        RONDO_TRY_ASSIGN(const auto own, cuda::DeviceMemory::make(100));
        EXPECT_TRUE(is_ok(comm.register_memory(own.as(), 100)));  // only noted
        EXPECT_TRUE(is_ok(comm.deregister_memory(own.as())));
        EXPECT_TRUE(fails_with(comm.register_memory(memory, 100), StatusCode::kInvalidArgument, {"made by alloc"}));
        CallOptions options;
        options.algorithm = "direct";
        EXPECT_TRUE(fails_with(comm.all_reduce(memory, memory, 9, Dtype::kFloat32, Op::kSum, &options),
                               StatusCode::kUnsupported, {"direct"}));
        Work work;
        RONDO_TRY(comm.all_reduce(memory, memory, 9, Dtype::kFloat32, Op::kSum, nullptr, &work));
        RONDO_TRY(work.wait());
        return comm.error();
      },
      "device_direct = off");
  EXPECT_EQ(watched.chose, 0);
}

// Threads exchange nothing: a single one may register.
TEST(DeviceDirectTest, ThreadsRegisterForThemselves) {
  on_linked_devices(2, [](Communicator& comm, FakeCuda& fake) -> Status {
    if (comm.rank() == 1) return {};
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(1000));
    RONDO_TRY_ASSIGN(const auto pooled, cuda::DeviceMemory::make(1000));
    fake.forbid_ipc(pooled.get());
    float on_host = 0;
    EXPECT_TRUE(is_ok(comm.register_memory(memory.as(), 1000)));
    EXPECT_TRUE(fails_with(comm.register_memory(memory.as(), 10), StatusCode::kInvalidArgument,
                           {"already registered", "deregister", "rank 0"}));
    EXPECT_TRUE(is_ok(comm.register_memory(memory.as() + 10, 990)));
    EXPECT_TRUE(fails_with(comm.register_memory(memory.as() + 11, 990), StatusCode::kInvalidArgument,
                           {"exceed its allocation", "989"}));
    EXPECT_TRUE(
        fails_with(comm.register_memory(pooled.as(), 10), StatusCode::kUnsupported, {"cudaMalloc", "expandable"}));
    EXPECT_TRUE(fails_with(comm.register_memory(&on_host, 4), StatusCode::kInvalidArgument, {"not CUDA memory"}));
    EXPECT_TRUE(fails_with(comm.register_memory(nullptr, 4), StatusCode::kInvalidArgument, {"ptr"}));
    EXPECT_TRUE(fails_with(comm.register_memory(memory.as() + 20, 0), StatusCode::kInvalidArgument, {"bytes"}));
    EXPECT_TRUE(is_ok(comm.deregister_memory(memory.as())));
    EXPECT_TRUE(fails_with(comm.deregister_memory(memory.as()), StatusCode::kInvalidArgument, {"not registered"}));
    EXPECT_TRUE(fails_with(comm.free(memory.as()), StatusCode::kInvalidArgument, {"not made by alloc"}));
    RONDO_TRY_ASSIGN(const auto other, cuda::PrimaryContext::retain(1));
    cuda::CurrentContext current(other.get());
    RONDO_TRY_ASSIGN(const auto elsewhere, cuda::DeviceMemory::make(64));
    EXPECT_TRUE(fails_with(comm.register_memory(elsewhere.as(), 64), StatusCode::kInvalidArgument, {"device 0"}));
    return comm.error();
  });
}

}  // namespace
}  // namespace rondo::testing
