// The limits of real drivers that the fake driver has on request (FakeLimits): shared hardware queues, full queues, late
// launch-completion events.
// labels: unit tsan
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "device/driver/handles.h"
#include "support/fake_cuda/fake_cuda.h"

namespace rondo::testing {
namespace {

using namespace rondo::cuda;

// A device whose streams can be held back by a word in its memory.
class FakeLimitsTest : public ::testing::Test {
 protected:
  void start(FakeLimits limits) {
    FakeMachine machine = FakeMachine::uniform(1);
    machine.limits = limits;
    fake_.emplace(machine);
    context_ = std::move(*PrimaryContext::retain(0));
    ASSERT_EQ(driver()->context_set_current(context_.get()), kSuccess);
    word_ = std::move(*PinnedMemory::make(4));
    *word_.as<uint32_t>() = 0;
    for (OwnedStream& s : streams_) s = std::move(*OwnedStream::make());
  }
  void finish() {
    for (OwnedStream& s : streams_) {
      EXPECT_EQ(driver()->stream_synchronize(s.get()), kSuccess);
      s = {};
    }
    word_ = {};
    context_ = {};
    EXPECT_EQ(fake_->leaks(), "");
    fake_.reset();
  }
  void hold(int stream) {
    BatchMemOp op;
    std::memset(&op, 0, sizeof op);
    op.value.operation = kMemOpWaitValue32;
    op.value.address = word_.on_device();
    op.value.value = 1;
    op.value.flags = kWaitGeq;
    ASSERT_EQ(driver()->stream_batch_mem_op(streams_[stream].get(), 1, &op, 0), kSuccess);
  }
  void let_go() { std::atomic_ref(*word_.as<uint32_t>()).store(1); }
  void call_host(int stream, std::atomic<bool>& done) {
    ASSERT_EQ(driver()->launch_host_function(
                  streams_[stream].get(), [](void* p) { *static_cast<std::atomic<bool>*>(p) = true; }, &done),
              kSuccess);
  }
  static bool stays_false(const std::atomic<bool>& flag) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // long enough for a thread that need not wait
    return !flag;
  }

  std::optional<FakeCuda> fake_;
  PrimaryContext context_;
  PinnedMemory word_;
  OwnedStream streams_[2];
};

TEST_F(FakeLimitsTest, StreamsOfOneQueueHoldEachOtherUp) {
  for (const uint32_t queues : {0u, 2u, 1u}) {
    SCOPED_TRACE(queues);
    start({.queues = queues});
    std::atomic<bool> done{false};
    hold(0);
    call_host(1, done);
    if (queues == 1) EXPECT_TRUE(stays_false(done));
    else EXPECT_EQ(driver()->stream_synchronize(streams_[1].get()), kSuccess);
    let_go();
    EXPECT_EQ(driver()->stream_synchronize(streams_[1].get()), kSuccess);
    EXPECT_TRUE(done);
    finish();
  }
}

TEST_F(FakeLimitsTest, ASubmissionWaitsForRoom) {
  start({.operations = 2});
  std::atomic<bool> done{false}, submitted{false};
  hold(0);
  call_host(0, done);
  std::thread third([&] {
    ASSERT_EQ(driver()->context_set_current(context_.get()), kSuccess);
    call_host(0, done);
    submitted = true;
  });
  EXPECT_TRUE(stays_false(submitted));
  let_go();
  third.join();
  finish();
}

struct Gate {
  std::atomic<bool>* open;
};
TEST_F(FakeLimitsTest, LateEventsComeWithTheEndOfAKernel) {
  for (const bool late : {false, true}) {
    start({.late = late});
    std::atomic<bool> open{false};
    fake_->add_kernel("gate", {[](const void* args, uint32_t, uint32_t) {
                                 while (!static_cast<const Gate*>(args)->open->load()) std::this_thread::yield();
                               },
                               sizeof(Gate)});
    Module module = nullptr;
    Function gate = nullptr;
    ASSERT_EQ(driver()->module_load_data(&module, "image"), kSuccess);
    ASSERT_EQ(driver()->module_get_function(&gate, module, "gate"), kSuccess);
    {
      const OwnedEvent begun = std::move(*OwnedEvent::make());
      LaunchAttribute attribute{};
      attribute.id = kLaunchCompletionEvent;
      attribute.launch_completion_event = {begun.get(), 0};
      Gate args{&open};
      void* params[] = {&args};
      LaunchConfig config{1, 1, 1, 32, 1, 1, 0, streams_[0].get(), &attribute, 1};
      ASSERT_EQ(driver()->launch_kernel(&config, gate, params, nullptr), kSuccess);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_EQ(driver()->event_query(begun.get()), late ? kErrorNotReady : kSuccess);
      open = true;
      EXPECT_EQ(driver()->event_synchronize(begun.get()), kSuccess);
      EXPECT_EQ(driver()->stream_synchronize(streams_[0].get()), kSuccess);
    }
    ASSERT_EQ(driver()->module_unload(module), kSuccess);
    finish();
  }
}

}  // namespace
}  // namespace rondo::testing
