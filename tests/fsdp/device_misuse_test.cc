// Errors if device, communicator and plan do not match, and of a device that fails.
// labels: unit
// timeout: 60
// links: host_kernels
#include "fsdp/fake_device.h"

namespace rondo::fsdp::testing {
namespace {

using rondo::testing::EmulatedCuda;
using rondo::testing::FakeMachine;

void expect_refused(const Expected<std::unique_ptr<Engine>>& made, std::initializer_list<const char*> words) {
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << made.status().to_string();
  for (const char* w : words)
    EXPECT_NE(made.status().message().find(w), std::string::npos) << w << ": " << made.status().to_string();
}

TEST(FsdpDeviceMisuse, DeviceAndCommunicatorLieApart) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  const TinyNet net;
  const auto plan = Plan::build(net.model(), {.nranks = 2});
  ASSERT_TRUE(plan.ok());
  rondo::testing::SpawnOptions on_devices;
  on_devices.config = rondo::testing::device_config();
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        expect_refused(Engine::create(*plan, comm, {}),
                       {"rank", "options.device is host memory", "CUDA device", "cuda_device()"});
        const auto other = cuda_device(1 - device_of(comm));
        ASSERT_TRUE(other.ok());
        expect_refused(Engine::create(*plan, comm, {.device = *other}), {"CUDA device 0", "CUDA device 1"});
      },
      on_devices);
  spawn(World::kThreads, 2, [&](Communicator& comm) {
    EXPECT_EQ(device_of(comm), -1);
    const auto device = cuda_device(0);
    ASSERT_TRUE(device.ok());
    expect_refused(Engine::create(*plan, comm, {.device = *device}), {"CUDA device 0", "host memory"});
  });
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST(FsdpDeviceMisuse, OffloadFromTheHostHasNothingToMove) {
  const TinyNet net;
  const auto plan = Plan::build(net.model(), {.nranks = 1, .offload = true});
  ASSERT_TRUE(plan.ok());
  spawn(World::kThreads, 1, [&](Communicator& comm) {
    expect_refused(Engine::create(*plan, comm, {}), {"offload", "without offload"});
  });
}

TEST(FsdpDeviceMisuse, NoSuchDevice) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  for (const int ordinal : {-1, 2}) {
    const auto made = cuda_device(ordinal);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().message().find("2 CUDA devices"), std::string::npos) << made.status().to_string();
  }
}

// Freeing CUDA memory waits for the whole context: freed memory is reused, zeroed.
TEST(FsdpDeviceMisuse, FreedMemoryServesTheNext) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  {
    const auto made = cuda_device(0);
    ASSERT_TRUE(made.ok());
    Device& device = **made;
    const auto first = device.allocate(1000);
    ASSERT_TRUE(first.ok());
    const std::vector<char> ones(1000, 1);
    ASSERT_TRUE(device.write(*first, ones.data(), ones.size()).ok());
    device.free(*first);
    const auto large = device.allocate(4000), second = device.allocate(900), third = device.allocate(900);
    ASSERT_TRUE(large.ok() && second.ok() && third.ok());
    EXPECT_EQ(*second, *first);
    EXPECT_NE(*large, *first);
    EXPECT_NE(*third, *first);
    std::vector<char> read(900, 1);
    ASSERT_TRUE(device.read(read.data(), *second, read.size()).ok());
    EXPECT_EQ(read, std::vector<char>(900, 0));
  }
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// Failed allocations of device memory, events or pinned memory are errors and leak nothing.
TEST(FsdpDeviceMisuse, WhatCannotBeHadIsAnErrorAndNothingLeaks) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  const TinyNet net;
  for (const bool offload : {false, true}) {
    const auto plan = Plan::build(net.model(), {.nranks = 1, .offload = offload});
    ASSERT_TRUE(plan.ok());
    rondo::testing::SpawnOptions options;
    options.config = rondo::testing::device_config();
    spawn(
        World::kThreads, 1,
        [&](Communicator& comm) {
          int failed = 0;
          for (const char* what : {"cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate"})
            for (const uint64_t nth : {1u, 3u, 5u}) {
              {
                auto other = std::make_shared<FakeDevice>(comm, Delays{});    // with its own memory
                auto warm = Engine::create(*plan, comm, {.device = other});   // makes the communicator's own memory
                ASSERT_TRUE(warm.ok()) << warm.status().to_string();
              }
              auto device = std::make_shared<FakeDevice>(comm, Delays{});
              cuda.fake().fail(what, cuda::kErrorOutOfMemory, nth);
              const auto made = Engine::create(*plan, comm, {.device = device});
              failed += !made.ok();
              if (!made.ok()) {
                EXPECT_EQ(made.status().code(), StatusCode::kExhausted) << made.status().to_string();
              }
              cuda.fake().fail(what, cuda::kErrorOutOfMemory, 1'000'000'000);
            }
          EXPECT_GE(failed, 6);
        },
        options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// A device fault reaches the caller at the next call, and the engine can be destroyed.
TEST(FsdpDeviceMisuse, AFaultOfTheDeviceIsReported) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  const TinyNet net;
  const auto plan = Plan::build(net.model(), {.nranks = 1});
  ASSERT_TRUE(plan.ok());
  rondo::testing::SpawnOptions options;
  options.config = rondo::testing::device_config();
  spawn(
      World::kThreads, 1,
      [&](Communicator& comm) {
        auto made = Engine::create(*plan, comm, {.device = std::make_shared<FakeDevice>(comm, Delays{})});
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        fill(**made);
        ASSERT_TRUE(train_step(**made, net, 1, 1, 0).ok());
        ASSERT_TRUE((*made)->device().synchronize(Line::kCompute).ok());
        cuda.fake().break_device(0, cuda::kErrorIllegalAddress);
        const Status s = (*made)->gather(1);
        EXPECT_EQ(s.code(), StatusCode::kCuda) << s.to_string();
        EXPECT_NE(s.message().find("700"), std::string::npos) << s.to_string();
      },
      options);
}

// A missing peer: results used by the host report it at once, results that stay on the device when they are requested.
TEST(FsdpDeviceMisuse, AReductionThatFailsIsToldBeforeItsResultIsTrusted) {
  for (const bool offload : {false, true}) {
    EmulatedCuda cuda(FakeMachine::uniform(2));
    const TinyNet net{.layers = 1, .root = false};
    const auto plan = Plan::build(net.model(), {.nranks = 2, .offload = offload});
    ASSERT_TRUE(plan.ok());
    rondo::testing::SpawnOptions options;
    options.config = rondo::testing::device_config();
    options.config.deadline_s = 1;
    spawn(
        World::kThreads, 2,
        [&](Communicator& comm) {
          auto made = Engine::create(*plan, comm, {.device = std::make_shared<FakeDevice>(comm, Delays{})});
          ASSERT_TRUE(made.ok()) << made.status().to_string();
          Engine& e = **made;
          fill(e);
          ASSERT_TRUE(train_step(e, net, 1, 1, comm.rank()).ok());
          ASSERT_TRUE(e.settled().ok());
          if (comm.rank() == 1) return;
          ASSERT_TRUE(e.begin_grads(0).ok());
          ASSERT_TRUE(e.reduce(0).ok());
          const Status waited = e.wait_reduce(0);
          EXPECT_EQ(waited.ok(), !offload) << waited.to_string();
          EXPECT_FALSE(e.settled().ok());
          EXPECT_FALSE(e.read_owned([](const Tensor&, uint64_t, uint64_t, const void*) {}).ok());
        },
        options);
  }
}

}  // namespace
}  // namespace rondo::fsdp::testing
