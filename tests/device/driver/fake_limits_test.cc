// The limits of real drivers that the fake driver has on request (FakeLimits): shared hardware queues, full queues,
// late launch-completion events.
// labels: unit tsan
#include <gtest/gtest.h>

#include <atomic>
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
  void start(FakeLimits limits, double deadline_s = 30) {
    FakeMachine machine = FakeMachine::uniform(1);
    machine.limits = limits;
    machine.deadline_s = deadline_s;
    fake_.emplace(machine);
    context_ = std::move(*PrimaryContext::retain(0));
    ASSERT_EQ(driver()->context_set_current(context_.get()), kSuccess);
    word_ = std::move(*PinnedMemory::make(4));
    *word_.as<uint32_t>() = 0;
    for (int s = 0; s < 2; ++s) {
      streams_[s] = std::move(*OwnedStream::make());
      Look first;  // starts the stream's thread
      look(s, first);
      ASSERT_EQ(driver()->stream_synchronize(streams_[s].get()), kSuccess);
    }
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
  void let_go() { std::atomic_ref(*word()).store(1); }
  uint32_t* word() { return word_.as<uint32_t>(); }
  // Gives other threads the time to do what they should not.
  static void give_time() {
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
  }
  // A host function that stores the word as it sees it.
  struct Look {
    uint32_t* word;
    std::atomic<int> seen{-1};
  };
  void look(int stream, Look& look) {
    look.word = word();
    ASSERT_EQ(driver()->launch_host_function(
                  streams_[stream].get(),
                  [](void* p) {
                    auto* const l = static_cast<Look*>(p);
                    l->seen = static_cast<int>(std::atomic_ref(*l->word).load());
                  },
                  &look),
              kSuccess);
  }

  std::optional<FakeCuda> fake_;
  PrimaryContext context_;
  PinnedMemory word_;
  OwnedStream streams_[2];
};

TEST_F(FakeLimitsTest, StreamsOfTheirOwnQueuesDoNotWait) {
  for (const uint32_t queues : {0u, 2u}) {
    SCOPED_TRACE(queues);
    start({.queues = queues});
    Look second;
    hold(0);
    look(1, second);
    EXPECT_EQ(driver()->stream_synchronize(streams_[1].get()), kSuccess);
    EXPECT_EQ(second.seen, 0);
    let_go();
    finish();
  }
}

// Many rounds, because an operation that need not wait could also be late by chance.
constexpr int kRounds = 50;

TEST_F(FakeLimitsTest, StreamsOfOneQueueHoldEachOtherUp) {
  for (int round = 0; round < kRounds; ++round) {
    start({.queues = 1});
    Look second;
    hold(0);
    look(1, second);
    give_time();
    let_go();
    finish();
    ASSERT_EQ(second.seen, 1) << "round " << round;
  }
}

TEST_F(FakeLimitsTest, ADeadlineNamesWhatIsAheadInTheQueue) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto wait_behind = [this] {
    start({.queues = 1}, 0.2);
    Look second;
    hold(0);
    look(1, second);
    (void)driver()->stream_synchronize(streams_[1].get());
  };
  EXPECT_DEATH(wait_behind(), "queue 0: a host function \\(behind a wait for a value in memory of another stream\\)");
}

TEST_F(FakeLimitsTest, ASubmissionWaitsForRoom) {
  for (int round = 0; round < kRounds; ++round) {
    start({.operations = 2});
    Look looks[2];
    std::atomic<int> at_return{-1};
    hold(0);
    look(0, looks[0]);
    std::thread third([&] {
      ASSERT_EQ(driver()->context_set_current(context_.get()), kSuccess);
      look(0, looks[1]);
      at_return = static_cast<int>(std::atomic_ref(*word()).load());
    });
    give_time();
    let_go();
    third.join();
    finish();
    ASSERT_EQ(at_return, 1) << "round " << round;
  }
}

struct Gate {
  std::atomic<bool>*running, *open;
};
TEST_F(FakeLimitsTest, LateEventsComeWithTheEndOfAKernel) {
  for (const bool late : {false, true}) {
    start({.late = late});
    std::atomic<bool> running{false}, open{false};
    fake_->add_kernel("gate", {[](const void* args, uint32_t, uint32_t) {
                                 const Gate& gate = *static_cast<const Gate*>(args);
                                 *gate.running = true;
                                 while (!*gate.open) std::this_thread::yield();
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
      Gate args{&running, &open};
      void* params[] = {&args};
      LaunchConfig config{1, 1, 1, 32, 1, 1, 0, streams_[0].get(), &attribute, 1};
      ASSERT_EQ(driver()->launch_kernel(&config, gate, params, nullptr), kSuccess);
      while (!running) std::this_thread::yield();
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
