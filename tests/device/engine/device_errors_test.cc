// Errors of communicators of device memory: arguments, aborts, deadlines, ranks that disagree, failures of the driver.
// Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

TEST(DeviceErrorsTest, MisalignedMemoryIsRefusedByName) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 10);
    char* const bytes = reinterpret_cast<char*>(a.data());
    EXPECT_TRUE(fails_with(comm.reduce_scatter(bytes + 2, bytes + 24, 2, Dtype::kFloat32, Op::kSum),
                           StatusCode::kInvalidArgument,
                           {"rank " + std::to_string(comm.rank()), "in is at", "4 bytes of float"}));
    EXPECT_TRUE(fails_with(comm.all_gather(bytes, bytes + 17, 1, Dtype::kFloat32), StatusCode::kInvalidArgument,
                           {"out is at"}));
    return Status();
  });
}

TEST(DeviceErrorsTest, BitwiseOperatorsAreRefusedByName) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 10);
    EXPECT_TRUE(fails_with(comm.all_reduce(a.data(), a.data(), 10, Dtype::kUint32, Op::kBitOr),
                           StatusCode::kUnsupported, {"rank " + std::to_string(comm.rank()), "bor", "device memory"}));
    return {};
  });
}

TEST(DeviceErrorsTest, MatchingByTagsIsRefusedByName) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 10);
    const CallOptions options{.match_tags = true};
    for (const Status& s : {comm.send(a.data(), 10, Dtype::kFloat32, 1 - comm.rank(), &options),
                            comm.recv(a.data(), 10, Dtype::kFloat32, kAnyRank, &options)})
      EXPECT_TRUE(fails_with(s, StatusCode::kUnsupported,
                             {"rank " + std::to_string(comm.rank()), "match_tags", "device memory"}));
    return {};
  });
}

TEST(DeviceErrorsTest, AFinalizedCommunicatorTakesNoCalls) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 100);
    a.set_simple(comm.rank());
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
    RONDO_TRY(comm.finalize());
    EXPECT_TRUE(a.holds_simple_sum(2));
    EXPECT_TRUE(fails_with(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options),
                           StatusCode::kInvalidArgument, {"rank " + std::to_string(comm.rank()), "was finalized"}));
    return Status();
  });
  on_devices(1, 2, [](Communicator& comm) -> Status {  // the group was opened before
    Floats a(comm, 100);
    group_start();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum));
    RONDO_TRY(comm.finalize());
    EXPECT_TRUE(fails_with(group_end(), StatusCode::kInvalidArgument, {"was finalized"}));
    return Status();
  });
}

TEST(DeviceErrorsTest, HostMemoryIsRefusedByName) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    std::vector<float> on_host(10);
    Floats a(comm, 10);
    EXPECT_TRUE(fails_with(comm.all_reduce(on_host.data(), a.data(), 10, Dtype::kFloat32, Op::kSum),
                           StatusCode::kInvalidArgument, {"in", "rank " + std::to_string(comm.rank()), "device 0"}));
    EXPECT_TRUE(fails_with(comm.all_reduce(a.data(), on_host.data(), 10, Dtype::kFloat32, Op::kSum),
                           StatusCode::kInvalidArgument, {"out"}));
    a.set_simple(comm.rank());
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 10, Dtype::kFloat32, Op::kSum, &options));  // it still works
    stream.wait();
    EXPECT_TRUE(a.holds_simple_sum(2));
    return comm.error();
  });
}

TEST(DeviceErrorsTest, AnAbortEndsWhatWaitsOnTheDevice) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 100);
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    if (comm.rank() == 1) {
      comm.abort();
      EXPECT_EQ(comm.error().code(), StatusCode::kAborted);
      return {};
    }
    Work work;
    Status s = comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options, &work);
    if (s.ok()) s = work.wait();
    EXPECT_TRUE(fails_with(s, StatusCode::kAborted, {"rank 1 aborted"}));
    EXPECT_EQ(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options).code(),
              StatusCode::kAborted);
    return {};
  });
}

TEST(DeviceErrorsTest, ADeadlineNamesWhoIsMissing) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 100);
    Stream stream;
    CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    if (comm.rank() == 1) {  // never makes the second call
      while (comm.error().ok()) std::this_thread::yield();
      EXPECT_EQ(comm.error().code(), StatusCode::kAborted);
      return {};
    }
    options.deadline_s = 1;
    Work work;
    Status s = comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options, &work);
    const auto heard = std::make_shared<std::promise<Status>>();
    if (s.ok()) s = work.on_done([heard](const Status& ended) { heard->set_value(ended); });
    if (s.ok()) {
      EXPECT_EQ(work.wait_for(0.01).code(), StatusCode::kInProgress);
      s = work.wait();
      std::future<Status> end = heard->get_future();
      const bool called = end.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
      EXPECT_TRUE(called && end.get().code() == s.code());
      EXPECT_EQ(work.wait_for(0).code(), s.code());
    }
    EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"rank 0", "rank 1 has not called it", "all_reduce"}));
    return {};
  });
}

// Two ranks with different calls get an error from the device itself.
TEST(DeviceErrorsTest, RanksThatDisagreeHearSo) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  SpawnOptions spawn_options;
  spawn_options.config = device_config("device_blocks = -3\ndevice_engine = interpreter\nalgo = ring\nproto = simple");
  spawn_threads(
      2,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        Floats a(comm, 4000);
        Stream stream;
        const CallOptions options = stream.options();
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), 4000, Dtype::kFloat32, Op::kSum, &options));
        stream.wait();
        Work work;
        Status s = comm.all_reduce(a.data(), a.data(), comm.rank() == 0 ? 4000 : 3000, Dtype::kFloat32, Op::kSum,
                                   &options, &work);
        if (s.ok()) s = work.wait();
        EXPECT_TRUE(s.code() == StatusCode::kMismatch || s.code() == StatusCode::kAborted) << s.to_string();
        if (s.code() == StatusCode::kMismatch) {
          EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {"rank " + std::to_string(1 - comm.rank())}));
        }
        return {};
      },
      spawn_options);
}

TEST(DeviceErrorsTest, FailuresOfTheDriverAreErrorsWithTheirNames) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  cuda.fake().fail("cuMemAlloc_v2", cuda::kErrorOutOfMemory);
  const auto none = Communicator::init_all(2, device_config());
  EXPECT_TRUE(fails_with(none.status(), StatusCode::kExhausted, {"cuMemAlloc", "rank"}));
  Config config = device_config();
  config.devices = {0, 3};
  EXPECT_TRUE(
      fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument, {"devices[1] is 3"}));
  config.devices = {0};
  EXPECT_TRUE(
      fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument, {"1 entries for 2"}));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST(DeviceErrorsTest, WithoutADriverTheReasonIsGiven) {
  if (cuda::driver() != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  const auto none = Communicator::init_all(2, device_config());
  EXPECT_TRUE(fails_with(none.status(), StatusCode::kUnsupported, {"no NVIDIA driver"}));
}

}  // namespace
}  // namespace rondo::testing
