// Regions that processes agree on: which memory is opened, which calls are direct, and how regions end.
// labels: mp
// timeout: 300
// again with: FAKE_CUDA=queues=32,operations=16,late,delay_us=50
// links: host_kernels
#include <signal.h>
#include <unistd.h>

#include "device/engine/direct_calls.h"
#include "protocol/spin.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

constexpr const char* kOpen = "cuIpcOpenMemHandle_v2";

// fn(communicator of devices, fake driver of this process): each rank's process has its own fake device.
template <class Fn>
void on_own_devices(int nranks, Fn fn, SpawnOptions options = {}, double init_deadline_s = 0) {
  WatchedCuda cuda(nranks);
  options.config.deadline_s = 60;
  options.deadline_s = 120;
  spawn(
      World::kProcesses, nranks,
      [&](Communicator& host) -> Status {
        {
          Config config = device_config("device_blocks = -6\nalgo = ring");
          config.device = host.rank();
          config.init_deadline_s = init_deadline_s;
          RONDO_TRY_ASSIGN(auto comm, host.split(0, host.rank(), config));
          use_device(*comm);
          RONDO_TRY(fn(*comm, cuda.fake()));
        }
        EXPECT_EQ(cuda.fake().leaks().find("mapping"), std::string::npos) << cuda.fake().leaks();
        return {};
      },
      options);
}

// One exact all-reduce on this memory, by the algorithm of that name.
Status sum(Communicator& comm, float* data, size_t count = 1009) {
  RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
  std::vector<float> mine(count), expected(count), found(count);
  for (size_t i = 0; i < count; ++i) {
    mine[i] = simple_value(comm.rank(), i);
    expected[i] = simple_sum(comm.size(), i);
  }
  RONDO_TRY(cuda::upload(stream.get(), at(data), mine.data(), count * sizeof(float)));
  CallOptions options;
  options.stream = stream.get();
  options.algorithm = "direct";
  Work work;
  RONDO_TRY(comm.all_reduce(data, data, count, Dtype::kFloat32, Op::kSum, &options, &work));
  RONDO_TRY(work.wait());
  EXPECT_EQ(cuda::driver()->memcpy_device_to_host(found.data(), at(data), count * sizeof(float)), 0);
  EXPECT_EQ(found, expected);
  return {};
}
// The same, and checks its way: `nowhere` for this rank, `fell_back` for all.
void expect_way(Communicator& comm, float* data, bool nowhere, bool fell_back, const char* where) {
  SCOPED_TRACE(where);
  watched.clear();
  EXPECT_TRUE(is_ok(sum(comm, data)));
  EXPECT_EQ(watched.chose, 1);
  EXPECT_EQ(watched.nowhere, nowhere ? 1 : 0);
  EXPECT_EQ(watched.fell_back, fell_back ? 1 : 0);
}

TEST(DeviceDirectProcessesTest, AllocatedMemory) {
  for (const int nranks : {1, 2, 3, 5}) {
    const DataTables tables = direct_tables(nranks);
    on_own_devices(nranks, [&](Communicator& comm, FakeCuda& fake) -> Status {
      const uint64_t opened = fake.calls(kOpen);
      RONDO_TRY_ASSIGN(void* const memory, comm.alloc(CaseRunner::memory_bytes(buffer_bytes(nranks))));
      EXPECT_EQ(fake.calls(kOpen) - opened, static_cast<uint64_t>(nranks - 1));
      RONDO_TRY(run_direct_cases(comm, tables, memory));
      EXPECT_EQ(watched.chose != 0, nranks > 1);
      EXPECT_EQ(watched.fell_back, 0);
      return comm.free(memory);
    });
  }
}

// The caller's memory, registered from the middle of an allocation, with a different offset on each rank.
TEST(DeviceDirectProcessesTest, RegisteredMemory) {
  for (const int nranks : {2, 4}) {
    const DataTables tables = direct_tables(nranks);
    on_own_devices(nranks, [&](Communicator& comm, FakeCuda& fake) -> Status {
      const uint64_t bytes = CaseRunner::memory_bytes(buffer_bytes(nranks)),
                     extra = 64u * static_cast<uint64_t>(comm.rank());
      RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(bytes + 1024));
      const uint64_t opened = fake.calls(kOpen);
      RONDO_TRY(comm.register_memory(memory.as() + 256 + extra, bytes));
      RONDO_TRY(comm.register_memory(memory.as(), 100 + extra));  // the same allocation: nothing more is opened
      EXPECT_EQ(fake.calls(kOpen) - opened, static_cast<uint64_t>(nranks - 1));
      RONDO_TRY(run_direct_cases(comm, tables, memory.as() + 256 + extra));
      EXPECT_EQ(watched.nowhere, 0);
      EXPECT_EQ(watched.fell_back, 0);
      EXPECT_NE(fake.leaks().find("mapping"), std::string::npos);
      RONDO_TRY(comm.deregister_memory(memory.as() + 256 + extra));
      EXPECT_NE(fake.leaks().find(std::to_string(bytes + 1024)), std::string::npos);
      expect_way(comm, memory.as<float>(), true, true, "the rest of the allocation");
      RONDO_TRY(comm.deregister_memory(memory.as()));
      EXPECT_FALSE(impl_of(comm).device()->transport().may_be_direct());
      EXPECT_EQ(sum(comm, memory.as<float>()).code(), StatusCode::kUnsupported)
          << "the plan before was made for regions";
      return comm.error();
    });
  }
}

// Input registered, output not, on one rank; or nothing at all. All cases take the fallback and are exact.
TEST(DeviceDirectProcessesTest, PartsThatAreNotRegistered) {
  for (const int nranks : {2, 3}) {
    const DataTables tables = direct_tables(nranks);
    on_own_devices(nranks, [&](Communicator& comm, FakeCuda&) -> Status {
      const uint64_t bytes = CaseRunner::memory_bytes(buffer_bytes(nranks));
      RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(bytes));
      RONDO_TRY(comm.register_memory(memory.as(), comm.rank() == 1 ? bytes / 2 : bytes));
      RONDO_TRY(run_direct_cases(comm, tables, memory.as()));
      EXPECT_GT(watched.chose, 0);
      EXPECT_EQ(watched.nowhere != 0, comm.rank() == 1);
      EXPECT_GT(watched.fell_back, 0);
      RONDO_TRY_ASSIGN(const auto other, cuda::DeviceMemory::make(bytes));
      watched.clear();
      RONDO_TRY(run_direct_cases(comm, tables, comm.rank() == 0 ? memory.as() : other.as()));
      EXPECT_EQ(watched.nowhere != 0, comm.rank() != 0);
      EXPECT_GT(watched.fell_back, 0);
      return comm.deregister_memory(memory.as());
    });
  }
}

// Memory that was freed while registered, and allocated again at the same address, is other memory.
TEST(DeviceDirectProcessesTest, MemoryAllocatedAnewAtTheSameAddress) {
  constexpr uint64_t kBytes = 3 << 20;  // a separate block whose address is reused
  on_own_devices(3, [&](Communicator& comm, FakeCuda&) -> Status {
    RONDO_TRY_ASSIGN(auto memory, cuda::DeviceMemory::make(kBytes));
    float* const data = memory.as<float>();
    const bool renews = comm.rank() == 1;
    RONDO_TRY(comm.register_memory(data, kBytes));
    expect_way(comm, data, false, false, "registered");
    RONDO_TRY(comm.barrier());
    if (renews) {
      memory = cuda::DeviceMemory();
      RONDO_TRY_ASSIGN(memory, cuda::DeviceMemory::make(kBytes));
      EXPECT_EQ(memory.as<float>(), data);
    }
    expect_way(comm, data, renews, true, "allocated anew");
    EXPECT_TRUE(fails_with(comm.register_memory(data, kBytes), StatusCode::kInvalidArgument,
                           {renews ? "already registered" : "rank", "deregister"}));
    RONDO_TRY(comm.deregister_memory(data));
    RONDO_TRY(comm.register_memory(data, kBytes));
    expect_way(comm, data, false, false, "registered again");
    return comm.deregister_memory(data);
  });
}

// Closing a handle waits for the device, here for a while on rank 1. Rank 0 must not go on and free its memory earlier.
TEST(DeviceDirectProcessesTest, NobodyHasItMappedWhenDeregisterReturns) {
  Shared<SharedCounter> busy;
  on_own_devices(2, [&](Communicator& comm, FakeCuda&) -> Status {
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(4096));
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    RONDO_TRY(comm.register_memory(memory.as(), 4096));
    if (comm.rank() == 1) {
      EXPECT_EQ(cuda::driver()->launch_host_function(
                    stream.get(),
                    [](void* done) {
                      usleep(300'000);
                      static_cast<SharedCounter*>(done)->add();
                    },
                    &*busy),
                0);
    }
    RONDO_TRY(comm.deregister_memory(memory.as()));
    EXPECT_EQ(busy->value(), 1u);
    return comm.error();
  });
}

// A call that has not run yet uses its region, so its number must not be reused meanwhile.
TEST(DeviceDirectProcessesTest, DeregisteringWaitsForCallsUnderWay) {
  on_own_devices(2, [&](Communicator& comm, FakeCuda&) -> Status {
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(8192));
    RONDO_TRY_ASSIGN(const auto other, cuda::DeviceMemory::make(8192));
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    RONDO_TRY(comm.register_memory(memory.as(), 4096));
    RONDO_TRY(comm.register_memory(memory.as() + 4096, 4096));  // nothing is closed, which would wait too
    RONDO_TRY(sum(comm, memory.as<float>()));
    EXPECT_EQ(cuda::driver()->launch_host_function(
                  stream.get(), [](void*) { usleep(200'000); }, nullptr),
              0);
    CallOptions options;
    options.stream = stream.get();
    options.algorithm = "direct";
    Work work;
    RONDO_TRY(comm.all_reduce(memory.as(), memory.as(), 1009, Dtype::kFloat32, Op::kSum, &options, &work));
    RONDO_TRY(comm.deregister_memory(memory.as()));
    RONDO_TRY(comm.register_memory(other.as(), 8192));
    RONDO_TRY(work.wait());
    expect_way(comm, other.as<float>(), false, false, "the same number");
    return comm.error();
  });
}

TEST(DeviceDirectProcessesTest, TwoCommunicatorsShareAnAllocation) {
  on_own_devices(2, [&](Communicator& comm, FakeCuda& fake) -> Status {
    RONDO_TRY_ASSIGN(auto other, comm.split(0, 1 - comm.rank()));  // in another order
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(16384));
    RONDO_TRY(comm.register_memory(memory.as(), 8192));
    expect_way(comm, memory.as<float>(), false, false, "first");
    RONDO_TRY_ASSIGN(void* const allocated, other->alloc(8192));
    expect_way(*other, memory.as<float>(), true, true, "not the other's");
    RONDO_TRY(other->register_memory(memory.as(), 16384));
    for (int round = 0; round < 3; ++round) {
      expect_way(*other, memory.as<float>() + 2048, false, false, "second");
      expect_way(comm, memory.as<float>(), false, false, "both");
      expect_way(comm, memory.as<float>() + 2048, true, true, "the other's part");
      expect_way(*other, static_cast<float*>(allocated), false, false, "allocated");
    }
    RONDO_TRY(comm.deregister_memory(memory.as()));
    expect_way(*other, memory.as<float>(), false, false, "the mapping of the other buffer stays");
    EXPECT_NE(fake.leaks().find("mapping of 16384"), std::string::npos);
    RONDO_TRY(other->deregister_memory(memory.as()));
    EXPECT_EQ(fake.leaks().find("mapping of 16384"), std::string::npos);
    return comm.error();
  });
}

// Regions come and go while calls run. Numbers are reused.
TEST(DeviceDirectProcessesTest, RegionsComeAndGo) {
  on_own_devices(2, [&](Communicator& comm, FakeCuda& fake) -> Status {
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    std::vector<void*> allocated;
    RONDO_TRY_ASSIGN(void* const first, comm.alloc(8192));
    for (int round = 0; round < 40; ++round) {
      RONDO_TRY_ASSIGN(void* const memory, comm.alloc(8192));
      allocated.push_back(memory);
      CallOptions options;
      options.stream = stream.get();
      for (void* m : allocated) RONDO_TRY(comm.all_reduce(m, m, 1000, Dtype::kFloat32, Op::kMax, &options));
      if (round % 3 == 2) {
        const auto which = static_cast<size_t>(round) % allocated.size();
        RONDO_TRY(comm.free(allocated[which]));  // waits for the calls
        allocated.erase(allocated.begin() + static_cast<int64_t>(which));
      }
      expect_way(comm, static_cast<float*>(first), false, false, "the first");
    }
    for (void* m : allocated) RONDO_TRY(comm.free(m));
    RONDO_TRY(comm.free(first));
    EXPECT_EQ(fake.leaks().find("mapping of 8192"), std::string::npos) << fake.leaks();
    return comm.error();
  });
}

TEST(DeviceDirectProcessesTest, ErrorsAreTheSameOnAllRanks) {
  on_own_devices(3, [&](Communicator& comm, FakeCuda& fake) -> Status {
    const Rank rank = comm.rank();
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(8192));
    RONDO_TRY_ASSIGN(const auto pooled, cuda::DeviceMemory::make(8192));
    fake.forbid_ipc(pooled.get());
    float on_host = 0;
    EXPECT_TRUE(fails_with(comm.register_memory(rank == 1 ? pooled.as() : memory.as(), 64), StatusCode::kUnsupported,
                           {"rank 1", "cudaMalloc"}));
    EXPECT_TRUE(fails_with(comm.register_memory(rank == 2 ? static_cast<void*>(&on_host) : memory.as(), 4),
                           StatusCode::kInvalidArgument, {"rank 2", "not CUDA memory"}));
    EXPECT_TRUE(fails_with(comm.register_memory(memory.as(), rank == 0 ? 8193 : 8192), StatusCode::kInvalidArgument,
                           {"rank 0", "exceed its allocation"}));
    EXPECT_TRUE(fails_with(comm.alloc(rank == 0 ? 4096 : 8192).status(), StatusCode::kMismatch, {"4096", "8192"}));
    if (rank == 0) {
      EXPECT_TRUE(fails_with(comm.alloc(4096).status(), StatusCode::kMismatch, {"alloc", "register"}));
    } else {
      EXPECT_TRUE(fails_with(comm.register_memory(memory.as(), 4096), StatusCode::kMismatch, {"alloc", "register"}));
    }
    if (rank == 1) fake.fail(kOpen, cuda::kErrorInvalidHandle);
    EXPECT_TRUE(fails_with(comm.register_memory(memory.as(), 64), StatusCode::kCuda, {"rank 1", "cuIpcOpenMemHandle"}));
    if (rank == 2) fake.fail("cuMemAlloc_v2", cuda::kErrorOutOfMemory);
    EXPECT_TRUE(fails_with(comm.alloc(8192).status(), StatusCode::kExhausted, {"rank 2", "cuMemAlloc"}));
    EXPECT_EQ(fake.leaks().find("mapping of 8192"), std::string::npos) << fake.leaks();
    EXPECT_FALSE(impl_of(comm).device()->transport().may_be_direct());

    // Everything still works.
    RONDO_TRY(comm.register_memory(memory.as(), 8192));
    RONDO_TRY_ASSIGN(void* const allocated, comm.alloc(8192));
    expect_way(comm, memory.as<float>(), false, false, "registered");
    EXPECT_TRUE(fails_with(comm.deregister_memory(allocated), StatusCode::kInvalidArgument, {"rank 0", "free"}));
    EXPECT_TRUE(fails_with(comm.free(memory.as()), StatusCode::kInvalidArgument, {"rank 0", "not made by alloc"}));
    EXPECT_TRUE(fails_with(comm.deregister_memory(rank == 1 ? pooled.as() : memory.as()), StatusCode::kInvalidArgument,
                           {"rank 1", "not registered"}));
    RONDO_TRY(comm.register_memory(memory.as() + 8, 8));
    EXPECT_TRUE(fails_with(comm.deregister_memory(memory.as() + (rank == 2 ? 8 : 0)), StatusCode::kMismatch,
                           {"rank 2", "region"}));
    expect_way(comm, memory.as<float>(), false, false, "still registered");
    RONDO_TRY(comm.free(allocated));
    return comm.error();
  });
}

TEST(DeviceDirectProcessesTest, ManyRegions) {
  on_own_devices(2, [&](Communicator& comm, FakeCuda&) -> Status {
    RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(8192));
    for (uint32_t i = 0; i < SharedRegions::kMaxRegions; ++i)
      RONDO_TRY(comm.register_memory(memory.as() + i, 8192 - i));
    EXPECT_TRUE(
        fails_with(comm.register_memory(memory.as() + 4096, 8), StatusCode::kExhausted, {"1024", "deregister"}));
    expect_way(comm, memory.as<float>() + 30, false, false, "in many");
    for (uint32_t i = 0; i < SharedRegions::kMaxRegions; ++i) RONDO_TRY(comm.deregister_memory(memory.as() + i));
    return comm.error();
  });
}

// A missing rank and a dead one end the others' calls.
TEST(DeviceDirectProcessesTest, ARankThatDoesNotRegister) {
  Shared<SharedCounter> ended;
  on_own_devices(
      2,
      [&](Communicator& comm, FakeCuda&) -> Status {
        RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(64));
        if (comm.rank() == 1) {  // lives but does not come until the other has given up
          EXPECT_TRUE(ended->wait_at_least(1, 30));
          return {};
        }
        EXPECT_TRUE(fails_with(comm.register_memory(memory.as(), 64), StatusCode::kTimeout, {"register", "rank 1"}));
        ended->add();
        return {};
      },
      {}, 0.5);
}

TEST(DeviceDirectProcessesTest, AKilledRankEndsRegistrationsOfTheOthers) {
  for (const bool frees : {false, true}) {
    SpawnOptions options;
    options.may_die = {2};
    on_own_devices(
        3,
        [&](Communicator& comm, FakeCuda&) -> Status {
          RONDO_TRY_ASSIGN(const auto memory, cuda::DeviceMemory::make(64));
          if (frees) RONDO_TRY(comm.register_memory(memory.as(), 64));
          if (comm.rank() == 2) kill(getpid(), SIGKILL);
          const uint64_t since = monotonic_ns();
          const Status s = frees ? comm.deregister_memory(memory.as()) : comm.register_memory(memory.as(), 64);
          EXPECT_TRUE(s.code() == StatusCode::kPeerLost || s.code() == StatusCode::kAborted) << s.to_string();
          EXPECT_LT(monotonic_ns() - since, 5'000'000'000u);
          return {};
        },
        options);
  }
}

}  // namespace
}  // namespace rondo::testing
