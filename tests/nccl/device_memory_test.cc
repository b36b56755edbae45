// libnccl with emulated device memory: every call is in its stream, and several ranks may share a device. Also the
// setting that keeps communicators on the host.
// labels: unit tsan
// links: host_kernels
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>

#include "device/driver/handles.h"
#include "nccl/comm.h"
#include "nccl/nccl_ranks.h"
#include "support/emulated_cuda.h"

namespace rondo::testing {
namespace {

cuda::DevicePtr at(const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); }

// Like cudaSetDevice.
thread_local std::optional<cuda::PrimaryContext> device_of_thread;
void set_device(int ordinal) {
  device_of_thread.emplace(std::move(*cuda::PrimaryContext::retain(ordinal)));
  ASSERT_EQ(cuda::driver()->context_set_current(device_of_thread->get()), 0);
}
void forget_device() {
  cuda::driver()->context_set_current(nullptr);
  device_of_thread.reset();
}

struct Array {
  explicit Array(const std::vector<float>& values) : size(values.size()) {
    EXPECT_TRUE(succeeds(ncclMemAlloc(reinterpret_cast<void**>(&data), size * sizeof(float))));
    set(values);
  }
  ~Array() { EXPECT_TRUE(succeeds(ncclMemFree(data))); }
  Array(const Array&) = delete;
  void set(const std::vector<float>& values) {
    EXPECT_TRUE(cuda::upload(nullptr, at(data), values.data(), values.size() * sizeof(float)).ok());
  }
  std::vector<float> get() const {
    std::vector<float> v(size);
    EXPECT_EQ(cuda::driver()->memcpy_device_to_host(v.data(), at(data), size * sizeof(float)), 0);
    return v;
  }
  float* data = nullptr;
  size_t size;
};

class NcclDeviceMemory : public ::testing::Test {
 protected:
  // Each rank's thread selects its device, makes a communicator, and runs.
  void ranks(int devices, int nranks, const std::function<void(int, ncclComm_t, cudaStream_t)>& fn) {
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    ncclUniqueId id;
    ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
    run_ranks(nranks, [&](int rank) {
      set_device(rank % devices);
      ncclComm_t comm = nullptr;
      EXPECT_TRUE(succeeds(ncclCommInitRank(&comm, nranks, id, rank)));
      if (comm != nullptr) {
        int device = -1;
        EXPECT_TRUE(succeeds(ncclCommCuDevice(comm, &device)));
        EXPECT_EQ(device, rank % devices);
        auto stream = cuda::OwnedStream::make();
        fn(rank, comm, reinterpret_cast<cudaStream_t>(stream->get()));
        EXPECT_EQ(cuda::driver()->stream_synchronize(stream->get()), 0);
        EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
      }
      forget_device();
    });
  }
  static void wait(cudaStream_t stream) {
    EXPECT_EQ(cuda::driver()->stream_synchronize(reinterpret_cast<cuda::Stream>(stream)), 0);
  }
};

// Thread blocks in a config, and the memory of connections.
TEST_F(NcclDeviceMemory, ConfigsSteerBlocks) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  run_ranks(2, [&](int rank) {
    set_device(rank);
    for (const bool none : {false, true}) {
      ncclConfig_t config = new_config();
      config.maxCTAs = 3;
      if (none) config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
      ncclComm_t comm = nullptr;
      ASSERT_TRUE(succeeds(ncclCommInitRankConfig(&comm, 2, ids[none ? 1 : 0], rank, &config)));
      auto found = nccl::find_comm(comm);
      ASSERT_TRUE(found.ok());
      const std::string plan =
          (*found)->inner()->explain_plan(Collective::kAllReduce, 1 << 20, Dtype::kFloat32, Op::kSum);
      EXPECT_EQ(plan.find("by streams") != std::string::npos, none) << plan;
      EXPECT_EQ(plan.find(" 16 channels"), std::string::npos) << plan;
      {
        Array a(std::vector<float>(1000, 1));
        EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 1000, ncclFloat32, ncclSum, comm, nullptr)));
        wait(nullptr);
        EXPECT_EQ(a.get(), std::vector<float>(1000, 2));
      }
      uint64_t total = 0, persists = 0;
      EXPECT_TRUE(succeeds(ncclCommMemStats(comm, ncclStatGpuMemTotal, &total)));
      EXPECT_TRUE(succeeds(ncclCommMemStats(comm, ncclStatGpuMemPersist, &persists)));
      EXPECT_GT(total, 0u);
      EXPECT_EQ(total, persists);
      EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
    }
    forget_device();
  });
}

TEST_F(NcclDeviceMemory, CallsTellThatTheyHaveBegun) {
  ranks(2, 2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    Array a(std::vector<float>(1000, 1));
    auto begun = cuda::OwnedEvent::make();
    ASSERT_TRUE(begun.ok());
    ncclCollConfig_t config = new_call_config();
    config.minCTAs = config.maxCTAs = 3;
    config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(begun->get());
    EXPECT_TRUE(succeeds(ncclAllReduceConfig(a.data, a.data, 1000, ncclFloat32, ncclSum, comm, stream, &config)));
    EXPECT_EQ(cuda::driver()->event_synchronize(begun->get()), 0);
    wait(stream);
    EXPECT_EQ(a.get(), std::vector<float>(1000, 2)) << rank;
  });
}

TEST_F(NcclDeviceMemory, RanksThatShareADevice) {
  ranks(1, 3, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    Array a(std::vector<float>(1000, static_cast<float>(rank + 1))), b(std::vector<float>(3000));
    EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 1000, ncclFloat32, ncclSum, comm, stream)));
    EXPECT_TRUE(succeeds(ncclAllGather(a.data, b.data, 1000, ncclFloat32, comm, stream)));
    EXPECT_TRUE(succeeds(ncclAllReduce(b.data, b.data, 3000, ncclFloat32, ncclAvg, comm, stream)));
    wait(stream);
    EXPECT_EQ(b.get(), std::vector<float>(3000, 6.f));
    ncclResult_t error = ncclInternalError;
    EXPECT_TRUE(succeeds(ncclCommGetAsyncError(comm, &error)));
    EXPECT_EQ(error, ncclSuccess);
  });
}

TEST_F(NcclDeviceMemory, RanksOnDevicesOfTheirOwnWithGroupsAndSplits) {
  ranks(2, 2, [](int rank, ncclComm_t comm, cudaStream_t stream) {
    Array out(std::vector<float>(10, static_cast<float>(rank))), in(std::vector<float>(10));
    EXPECT_TRUE(succeeds(ncclGroupStart()));
    EXPECT_TRUE(succeeds(ncclSend(out.data, 10, ncclFloat32, 1 - rank, comm, stream)));
    EXPECT_TRUE(succeeds(ncclRecv(in.data, 10, ncclFloat32, 1 - rank, comm, stream)));
    EXPECT_TRUE(succeeds(ncclGroupEnd()));
    wait(stream);
    EXPECT_EQ(in.get(), std::vector<float>(10, static_cast<float>(1 - rank)));
    ncclComm_t part = nullptr;
    EXPECT_TRUE(succeeds(ncclCommSplit(comm, 0, -rank, &part, nullptr)));
    int part_rank = -1;
    EXPECT_TRUE(succeeds(ncclCommUserRank(part, &part_rank)));
    EXPECT_EQ(part_rank, 1 - rank);
    EXPECT_TRUE(succeeds(ncclBroadcast(out.data, in.data, 10, ncclFloat32, 0, part, stream)));
    wait(stream);
    EXPECT_EQ(in.get(), std::vector<float>(10, 1.f));
    EXPECT_TRUE(succeeds(ncclCommDestroy(part)));
  });
}

TEST_F(NcclDeviceMemory, ScalesOnTheDeviceAreReadWhenTheCallRuns) {
  ranks(1, 2, [](int, ncclComm_t comm, cudaStream_t stream) {
    Array a(std::vector<float>(100, 1.f)), scale({5.f}), three({3.f});
    ncclRedOp_t op;
    EXPECT_TRUE(succeeds(ncclRedOpCreatePreMulSum(&op, scale.data, ncclFloat32, ncclScalarDevice, comm)));
    EXPECT_EQ(cuda::driver()->memcpy_async(at(scale.data), at(three.data), sizeof(float),
                                           reinterpret_cast<cuda::Stream>(stream)),
              0);
    EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 100, ncclFloat32, op, comm, stream)));
    EXPECT_TRUE(succeeds(ncclRedOpDestroy(op, comm)));
    wait(stream);
    EXPECT_EQ(a.get(), std::vector<float>(100, 6.f));
  });
}

TEST_F(NcclDeviceMemory, OneThreadOwnsTwoRanksOfOneDevice) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  set_device(0);
  ncclComm_t comms[2];
  const int devices[] = {0, 0};
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, devices)));
  {
    Array a(std::vector<float>(50, 1.f)), b(std::vector<float>(50, 2.f));
    auto stream = cuda::OwnedStream::make();
    const auto s = reinterpret_cast<cudaStream_t>(stream->get());
    EXPECT_TRUE(succeeds(ncclGroupStart()));
    EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 50, ncclFloat32, ncclSum, comms[0], s)));
    EXPECT_TRUE(succeeds(ncclAllReduce(b.data, b.data, 50, ncclFloat32, ncclSum, comms[1], s)));
    EXPECT_TRUE(succeeds(ncclGroupEnd()));
    wait(s);
    EXPECT_EQ(a.get(), std::vector<float>(50, 3.f));
    EXPECT_EQ(b.get(), std::vector<float>(50, 3.f));
  }
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
  forget_device();
}

// The caller's own work in a stream, which ends when the test lets it.
struct ForeignWork {
  explicit ForeignWork(cuda::Stream stream) {
    const auto wait = [](void* self) {
      while (!static_cast<ForeignWork*>(self)->over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    EXPECT_EQ(cuda::driver()->launch_host_function(stream, wait, this), 0);
  }
  std::atomic<bool> over{false};
};

// Calls are queued behind the caller's own work, which ends after the aborts. One thread owns both ranks.
void abort_behind_foreign_work(bool in_group) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  set_device(0);
  ncclComm_t comms[2];
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, nullptr)));
  {
    std::optional<Array> data[2];
    cuda::OwnedStream streams[2];
    std::optional<ForeignWork> foreign[2];
    const auto all_reduce = [&] {
      EXPECT_TRUE(succeeds(ncclGroupStart()));
      for (int r = 0; r < 2; ++r)
        EXPECT_TRUE(succeeds(ncclAllReduce(data[r]->data, data[r]->data, 100, ncclFloat32, ncclSum, comms[r],
                                           reinterpret_cast<cudaStream_t>(streams[r].get()))));
      EXPECT_TRUE(succeeds(ncclGroupEnd()));
    };
    for (int r = 0; r < 2; ++r) {
      set_device(r);
      data[r].emplace(std::vector<float>(100, 1.f));
      streams[r] = std::move(*cuda::OwnedStream::make());
    }
    all_reduce();  // makes the connections
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(cuda::driver()->stream_synchronize(streams[r].get()), 0);
      set_device(r);
      foreign[r].emplace(streams[r].get());
    }
    all_reduce();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(!in_group || succeeds(ncclGroupStart()));
    for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommAbort(c)));
    EXPECT_TRUE(!in_group || succeeds(ncclGroupEnd()));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommAbort(comms[0])));
    EXPECT_FALSE(foreign[0]->over);
    for (auto& f : foreign) f->over = true;
    for (int r = 0; r < 2; ++r) {
      set_device(r);
      EXPECT_EQ(cuda::driver()->stream_synchronize(streams[r].get()), 0);
    }
  }
  forget_device();
  // Freed in the background, when the last call has ended.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!cuda.fake().leaks().empty() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  // An abort that ends waits for the thread that frees, so that it no longer uses the fake driver.
  ncclComm_t alone = nullptr;
  EXPECT_TRUE(succeeds(ncclCommInitAll(&alone, 1, nullptr)));
  EXPECT_TRUE(succeeds(ncclCommAbort(alone)));
  forget_device();
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST_F(NcclDeviceMemory, AbortsDoNotWaitForWorkBeforeTheCall) { abort_behind_foreign_work(false); }
TEST_F(NcclDeviceMemory, AbortsInAGroupDoNotWaitForWorkBeforeTheCall) { abort_behind_foreign_work(true); }

// The first rank's kernel waits for a rank that does not call.
TEST_F(NcclDeviceMemory, AbortsOfRanksOfOneThreadOneAfterTheOther) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  set_device(0);
  ncclComm_t comms[2];
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, nullptr)));
  {
    Array a(std::vector<float>(100, 1.f)), b(std::vector<float>(100, 1.f));
    auto stream = cuda::OwnedStream::make();
    const auto s = reinterpret_cast<cudaStream_t>(stream->get());
    EXPECT_TRUE(succeeds(ncclGroupStart()));
    EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 100, ncclFloat32, ncclSum, comms[0], s)));
    EXPECT_TRUE(succeeds(ncclAllReduce(b.data, b.data, 100, ncclFloat32, ncclSum, comms[1], nullptr)));
    EXPECT_TRUE(succeeds(ncclGroupEnd()));
    wait(s);
    wait(nullptr);
    EXPECT_TRUE(succeeds(ncclAllReduce(a.data, a.data, 100, ncclFloat32, ncclSum, comms[0], s)));
    const auto begin = std::chrono::steady_clock::now();
    for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommAbort(c)));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    wait(s);
    for (const float x : a.get()) ASSERT_TRUE(std::isnan(x)) << x;  // it never holds a plausible value
  }
  forget_device();
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST_F(NcclDeviceMemory, ErrorsOfCudaHaveTheirResult) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  set_device(0);
  const int devices[] = {0, 0};
  ncclComm_t comms[2];
  cuda.fake().fail("cuEventCreate", 719);
  EXPECT_TRUE(fails_with(ncclUnhandledCudaError, {"cuEventCreate"}, ncclCommInitAll(comms, 2, devices)));
  forget_device();
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST_F(NcclDeviceMemory, ASettingKeepsCommunicatorsOnTheHost) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  set_device(0);
  setenv("RONDO_NCCL_MEMORY", "host", 1);
  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  float x = 2, y = 0;
  EXPECT_TRUE(succeeds(ncclAllReduce(&x, &y, 1, ncclFloat32, ncclSum, comm, nullptr)));
  EXPECT_EQ(y, 2.f);
  auto memory = cuda::DeviceMemory::make(64);
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"sendbuff is device memory", "RONDO_NCCL_MEMORY"},
                         ncclAllReduce(memory->as(), &y, 1, ncclFloat32, ncclSum, comm, nullptr)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  unsetenv("RONDO_NCCL_MEMORY");
  *memory = cuda::DeviceMemory();
  forget_device();
}

}  // namespace
}  // namespace rondo::testing
