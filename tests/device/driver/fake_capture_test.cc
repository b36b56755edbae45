// The fake CUDA driver's stream capture: recording, replays, refusals.
// labels: unit tsan
// timeout: 120
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "device/driver/add_kernel.h"
#include "device/driver/driver.h"
#include "support/fake_cuda/fake_cuda.h"

namespace rondo::testing {
namespace {

using namespace rondo::cuda;

// Two of these end only if both run.
void pair_up(const void* args, uint32_t, uint32_t) {
  auto* count = *static_cast<std::atomic<int>* const*>(args);
  const int target = count->fetch_add(1) / 2 * 2 + 2;
  while (count->load() < target) sched_yield();
}

class Capture : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(d->primary_context_retain(&context, 0), kSuccess);
    ASSERT_EQ(d->context_set_current(context), kSuccess);
    cuda.add_kernel("add", {&add, sizeof(AddArgs)});
    cuda.add_kernel("pair_up", {&pair_up, sizeof(void*)});
    ASSERT_EQ(d->module_load_data(&module, "image"), kSuccess);
    ASSERT_EQ(d->module_get_function(&add_kernel, module, "add"), kSuccess);
    ASSERT_EQ(d->module_get_function(&pair_kernel, module, "pair_up"), kSuccess);
    for (Stream* s : {&a, &b}) ASSERT_EQ(d->stream_create(s, kStreamNonBlocking, 0), kSuccess);
    for (Event* e : {&fork, &join}) ASSERT_EQ(d->event_create(e, kEventDisableTiming), kSuccess);
  }
  void TearDown() override {
    for (const Event e : {fork, join}) EXPECT_EQ(d->event_destroy(e), kSuccess);
    for (const Stream s : {a, b}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
    EXPECT_EQ(d->module_unload(module), kSuccess);
    EXPECT_EQ(d->primary_context_release(0), kSuccess);
    EXPECT_EQ(cuda.leaks(), "");
  }
  template <class Args>
  Result launch(Function f, Stream s, Args args) {
    LaunchConfig config{1, 1, 1, 32, 1, 1, 0, s, nullptr, 0};
    void* params[] = {&args};
    return d->launch_kernel(&config, f, params, nullptr);
  }
  int status(Stream s) {
    int now = -1;
    EXPECT_EQ(d->stream_capture_info(s, &now, nullptr, nullptr, nullptr, nullptr), kSuccess);
    return now;
  }
  // Ends a capture that has become invalid.
  void end_invalid(Stream s) {
    EXPECT_EQ(status(s), kCaptureInvalidated);
    Graph graph = nullptr;
    EXPECT_EQ(cuda.end_capture(s, &graph), kErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(s), kCaptureNone);
  }

  FakeCuda cuda{FakeMachine::uniform(1)};
  const Driver* d = driver();
  Context context = nullptr;
  Module module = nullptr;
  Function add_kernel = nullptr, pair_kernel = nullptr;
  Stream a = nullptr, b = nullptr;
  Event fork = nullptr, join = nullptr;
};

TEST_F(Capture, NothingRunsUntilTheGraphIsLaunched) {
  int value = 0;
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(launch(add_kernel, a, AddArgs{&value, 1}), kSuccess);
  ASSERT_EQ(launch(add_kernel, a, AddArgs{&value, 10}), kSuccess);
  int now = 0;
  uint64_t id = 0;
  Graph during = nullptr;
  const void** dependencies = nullptr;
  size_t num = 0;
  ASSERT_EQ(d->stream_capture_info(a, &now, &id, &during, &dependencies, &num), kSuccess);
  EXPECT_EQ(now, kCaptureActive);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(num, 1u);
  Graph graph = nullptr;
  ASSERT_EQ(cuda.end_capture(a, &graph), kSuccess);
  EXPECT_EQ(graph, during);
  EXPECT_EQ(cuda.num_nodes(graph), 2u);
  EXPECT_EQ(value, 0);
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(cuda.launch_graph(graph, i % 2 ? a : b), kSuccess);
    ASSERT_EQ(d->stream_synchronize(i % 2 ? a : b), kSuccess);
    EXPECT_EQ(value, 11 * i);
  }
  // Launches in different streams run one after the other.
  ASSERT_EQ(cuda.launch_graph(graph, a), kSuccess);
  ASSERT_EQ(cuda.launch_graph(graph, b), kSuccess);
  ASSERT_EQ(d->stream_synchronize(b), kSuccess);
  EXPECT_EQ(value, 55);
  EXPECT_EQ(cuda.destroy_graph(graph), kSuccess);
}

struct HoldArgs {
  std::atomic<int>*arrived, *wanted;
};
void hold(const void* args, uint32_t, uint32_t) {
  const auto* a = static_cast<const HoldArgs*>(args);
  const int mine = a->arrived->fetch_add(1) + 1;
  while (a->wanted->load() < mine) sched_yield();
}

TEST_F(Capture, LaunchesOfAGraphFollowOneAnother) {
  std::atomic<int> arrived{0}, wanted{0};
  cuda.add_kernel("hold", {&hold, sizeof(HoldArgs)});
  Function hold_kernel = nullptr;
  ASSERT_EQ(d->module_get_function(&hold_kernel, module, "hold"), kSuccess);
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(launch(hold_kernel, a, HoldArgs{&arrived, &wanted}), kSuccess);
  Graph graph = nullptr;
  ASSERT_EQ(cuda.end_capture(a, &graph), kSuccess);
  ASSERT_EQ(cuda.launch_graph(graph, a), kSuccess);
  ASSERT_EQ(cuda.launch_graph(graph, b), kSuccess);
  while (arrived.load() == 0) sched_yield();
  for (int i = 0; i < 1000; ++i) sched_yield();
  EXPECT_EQ(arrived.load(), 1) << "the second launch has not waited for the first, in another stream";
  wanted = 2;
  ASSERT_EQ(d->stream_synchronize(b), kSuccess);
  EXPECT_EQ(arrived.load(), 2);
  EXPECT_EQ(cuda.destroy_graph(graph), kSuccess);
}

TEST_F(Capture, AnEventBringsAnotherStreamIn) {
  std::atomic<int> count{0};
  int left = 0, right = 0;
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(launch(add_kernel, a, AddArgs{&left, 1}), kSuccess);
  ASSERT_EQ(d->event_record(fork, a), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, fork, 0), kSuccess);
  EXPECT_EQ(status(b), kCaptureActive);
  // Both branches run at once, or neither ends.
  ASSERT_EQ(launch(pair_kernel, a, &count), kSuccess);
  ASSERT_EQ(launch(pair_kernel, b, &count), kSuccess);
  ASSERT_EQ(launch(add_kernel, b, AddArgs{&right, 2}), kSuccess);
  ASSERT_EQ(d->event_record(join, b), kSuccess);
  ASSERT_EQ(d->stream_wait_event(a, join, 0), kSuccess);
  ASSERT_EQ(launch(add_kernel, a, AddArgs{&right, 5}), kSuccess);
  Graph graph = nullptr;
  ASSERT_EQ(cuda.end_capture(a, &graph), kSuccess);
  EXPECT_EQ(status(b), kCaptureNone);
  EXPECT_EQ(cuda.num_nodes(graph), 5u);
  for (int i = 1; i <= 5; ++i) ASSERT_EQ(cuda.launch_graph(graph, a), kSuccess);
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  EXPECT_EQ(left, 5);
  EXPECT_EQ(right, 35);
  EXPECT_EQ(count.load(), 10);
  EXPECT_EQ(cuda.destroy_graph(graph), kSuccess);
}

TEST_F(Capture, AStreamThatDoesNotComeBackIsRefused) {
  int value = 0;
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(d->event_record(fork, a), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, fork, 0), kSuccess);
  ASSERT_EQ(launch(add_kernel, b, AddArgs{&value, 1}), kSuccess);
  Graph graph = nullptr;
  EXPECT_EQ(cuda.end_capture(a, &graph), kErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status(b), kCaptureNone);
  EXPECT_EQ(value, 0);
}

TEST_F(Capture, EndsWhereItBegan) {
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(d->event_record(fork, a), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, fork, 0), kSuccess);
  Graph graph = nullptr;
  std::thread([&] { EXPECT_EQ(cuda.end_capture(a, &graph), kErrorStreamCaptureWrongThread); }).join();
  EXPECT_EQ(cuda.end_capture(b, &graph), kErrorStreamCaptureUnmatched);
  EXPECT_EQ(status(a), kCaptureNone);
}

TEST_F(Capture, OtherWorkIsKeptOut) {
  ASSERT_EQ(d->event_record(fork, b), kSuccess);
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  EXPECT_EQ(d->stream_wait_event(a, fork, 0), kErrorStreamCaptureIsolation);
  end_invalid(a);
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  ASSERT_EQ(cuda.begin_capture(b), kSuccess);
  ASSERT_EQ(d->event_record(fork, a), kSuccess);
  EXPECT_EQ(d->stream_wait_event(b, fork, 0), kErrorStreamCaptureMerge);
  end_invalid(a);
  end_invalid(b);
}

TEST_F(Capture, WaitingIsRefusedAndSpoilsIt) {
  int value = 0;
  const auto spoils = [&](Result expected, const auto& call) {
    ASSERT_EQ(cuda.begin_capture(a), kSuccess);
    ASSERT_EQ(d->event_record(fork, a), kSuccess);
    EXPECT_EQ(call(), expected);
    EXPECT_EQ(launch(add_kernel, a, AddArgs{&value, 1}), kErrorStreamCaptureInvalidated);
    end_invalid(a);
  };
  spoils(kErrorStreamCaptureUnsupported, [&] { return d->stream_synchronize(a); });
  spoils(kErrorStreamCaptureUnsupported, [&] { return d->stream_query(a); });
  spoils(kErrorStreamCaptureUnsupported, [&] { return d->context_synchronize(); });
  spoils(kErrorCapturedEvent, [&] { return d->event_query(fork); });
  spoils(kErrorCapturedEvent, [&] { return d->event_synchronize(fork); });
  spoils(kErrorStreamCaptureUnsupported, [&] {
    DevicePtr p = 0;
    return d->mem_alloc(&p, 16);
  });
  EXPECT_EQ(value, 0);
}

TEST_F(Capture, ModesSayWhoMayDisturb) {
  const auto alloc_in_thread = [&](int mode) {
    Result r = -1;
    std::thread([&] {
      EXPECT_EQ(d->context_set_current(context), kSuccess);
      EXPECT_EQ(d->thread_exchange_capture_mode(&mode), kSuccess);
      DevicePtr p = 0;
      r = d->mem_alloc(&p, 16);
      if (r == kSuccess) {
        EXPECT_EQ(d->mem_free(p), kSuccess);
      }
    }).join();
    return r;
  };
  ASSERT_EQ(cuda.begin_capture(a, kCaptureModeGlobal), kSuccess);
  EXPECT_EQ(alloc_in_thread(kCaptureModeThreadLocal), kSuccess);
  EXPECT_EQ(alloc_in_thread(kCaptureModeRelaxed), kSuccess);
  int mode = kCaptureModeRelaxed;
  ASSERT_EQ(d->thread_exchange_capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, kCaptureModeGlobal);
  DevicePtr p = 0;
  EXPECT_EQ(d->mem_alloc(&p, 16), kSuccess);
  EXPECT_EQ(d->mem_free(p), kSuccess);
  ASSERT_EQ(d->thread_exchange_capture_mode(&mode), kSuccess);
  EXPECT_EQ(status(a), kCaptureActive);
  EXPECT_EQ(alloc_in_thread(kCaptureModeGlobal), kErrorStreamCaptureUnsupported);
  end_invalid(a);
  ASSERT_EQ(cuda.begin_capture(a, kCaptureModeThreadLocal), kSuccess);
  EXPECT_EQ(alloc_in_thread(kCaptureModeGlobal), kSuccess);
  EXPECT_EQ(d->mem_alloc(&p, 16), kErrorStreamCaptureUnsupported);
  end_invalid(a);
}

TEST_F(Capture, ABeginningIsADependencyToo) {
  std::atomic<int> count{0};
  ASSERT_EQ(cuda.begin_capture(a), kSuccess);
  LaunchAttribute attribute{};
  attribute.id = kLaunchCompletionEvent;
  attribute.launch_completion_event = {fork, 0};
  LaunchConfig config{1, 1, 1, 32, 1, 1, 0, a, &attribute, 1};
  std::atomic<int>* at = &count;
  void* params[] = {&at};
  ASSERT_EQ(d->launch_kernel(&config, pair_kernel, params, nullptr), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, fork, 0), kSuccess);
  ASSERT_EQ(launch(pair_kernel, b, &count), kSuccess);  // after the end of the first one it would never end
  ASSERT_EQ(d->event_record(join, b), kSuccess);
  ASSERT_EQ(d->stream_wait_event(a, join, 0), kSuccess);
  Graph graph = nullptr;
  ASSERT_EQ(cuda.end_capture(a, &graph), kSuccess);
  ASSERT_EQ(cuda.launch_graph(graph, a), kSuccess);
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  EXPECT_EQ(count.load(), 2);
  EXPECT_EQ(cuda.destroy_graph(graph), kSuccess);
}

}  // namespace
}  // namespace rondo::testing
