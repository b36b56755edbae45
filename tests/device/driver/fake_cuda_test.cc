// The fake CUDA driver, through rondo's table: streams, events, kernels, errors.
// labels: unit tsan
// timeout: 120
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/driver/add_kernel.h"
#include "device/driver/fake_cuda_fixture.h"

namespace rondo::testing {
namespace {

class FakeDriver : public Fake {};

TEST_F(FakeDriver, StreamsRunSideBySideAndEventsOrderThem) {
  start();
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  cuda_->add_kernel("add", {&add, sizeof(AddArgs)});
  const Stream a = stream(), b = stream();
  const Event ready = event(), timed = event(0), timed_end = event(0);
  int value = 1;
  EXPECT_EQ(d->event_query(ready), kSuccess) << "never recorded";
  ASSERT_EQ(d->event_record(timed, a), kSuccess);
  ASSERT_EQ(launch(function("meet"), a, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  ASSERT_EQ(launch(function("add"), a, 1, AddArgs{&value, 10}), kSuccess);
  ASSERT_EQ(d->event_record(ready, a), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, ready, 0), kSuccess);
  ASSERT_EQ(launch(function("add"), b, 1, AddArgs{&value, 100}), kSuccess);
  EXPECT_EQ(d->event_query(ready), kErrorNotReady);
  EXPECT_EQ(d->stream_query(b), kErrorNotReady);
  while (arrived.load() == 0) sched_yield();
  wanted = 1;
  ASSERT_EQ(d->event_record(timed_end, b), kSuccess);
  ASSERT_EQ(d->event_synchronize(timed_end), kSuccess);
  EXPECT_EQ(value, 111);
  float ms = -1;
  EXPECT_EQ(d->event_elapsed_ms(&ms, timed, timed_end), kSuccess);
  EXPECT_GE(ms, 0);
  EXPECT_EQ(d->event_elapsed_ms(&ms, ready, timed_end), kErrorInvalidHandle) << "without times";
  // Recorded again: an earlier wait keeps the first record.
  EXPECT_EQ(d->event_query(ready), kSuccess);
  for (const Event e : {ready, timed, timed_end}) EXPECT_EQ(d->event_destroy(e), kSuccess);
  for (const Stream s : {a, b}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
  unload();
}

TEST_F(FakeDriver, AWaitKeepsToTheRecordThatItSaw) {
  start();
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  const Stream a = stream(), b = stream();
  const Event e = event();
  ASSERT_EQ(d->event_record(e, a), kSuccess);
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  ASSERT_EQ(d->stream_wait_event(b, e, 0), kSuccess);
  ASSERT_EQ(launch(function("meet"), a, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  ASSERT_EQ(d->event_record(e, a), kSuccess);
  EXPECT_EQ(d->event_query(e), kErrorNotReady);
  EXPECT_EQ(d->stream_synchronize(b), kSuccess);
  wanted = 1;
  EXPECT_EQ(d->event_synchronize(e), kSuccess);
  EXPECT_EQ(d->event_destroy(e), kSuccess);
  for (const Stream s : {a, b}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
  unload();
}

TEST_F(FakeDriver, TheLegacyStreamWaitsForBlockingStreamsOnly) {
  start();
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  cuda_->add_kernel("add", {&add, sizeof(AddArgs)});
  const Stream blocking = stream(0), free_running = stream();
  int value = 0;
  ASSERT_EQ(launch(function("meet"), free_running, 1, Meeting{&arrived, &wanted, 2}), kSuccess);
  ASSERT_EQ(launch(function("add"), nullptr, 1, AddArgs{&value, 1}), kSuccess);
  ASSERT_EQ(d->stream_synchronize(nullptr), kSuccess) << "does not wait for the non-blocking stream";
  EXPECT_EQ(value, 1);
  ASSERT_EQ(launch(function("meet"), blocking, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  ASSERT_EQ(launch(function("add"), nullptr, 1, AddArgs{&value, 1}), kSuccess);
  ASSERT_EQ(launch(function("add"), blocking, 1, AddArgs{&value, 1}), kSuccess);
  while (arrived.load() < 2) sched_yield();
  EXPECT_EQ(d->stream_query(nullptr), kErrorNotReady);
  wanted = 1;
  ASSERT_EQ(d->stream_synchronize(blocking), kSuccess);
  EXPECT_EQ(value, 3);
  wanted = 2;
  EXPECT_EQ(d->context_synchronize(), kSuccess);
  for (const Stream s : {blocking, free_running}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
  unload();
}

TEST_F(FakeDriver, EachThreadHasAStreamOfItsOwn) {
  start();
  const auto own = reinterpret_cast<Stream>(2);
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  ASSERT_EQ(launch(function("meet"), own, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  std::thread other([&] {
    EXPECT_EQ(d->context_set_current(contexts[0]), kSuccess);
    EXPECT_EQ(d->stream_query(own), kSuccess);
    EXPECT_EQ(launch(function("meet"), own, 1, Meeting{&arrived, &wanted, 0}), kSuccess);
    EXPECT_EQ(d->stream_synchronize(own), kSuccess);
  });
  other.join();
  EXPECT_EQ(d->stream_query(own), kErrorNotReady);
  wanted = 1;
  EXPECT_EQ(d->stream_synchronize(own), kSuccess);
  unload();
}

TEST_F(FakeDriver, MemoryOperationsOrderStreamsByAWord) {
  start();
  const DevicePtr words = alloc(64);
  const Stream a = stream(), b = stream();
  int order = 0;
  cuda_->add_kernel("add", {&add, sizeof(AddArgs)});
  const Function add_kernel = function("add");  // while nothing waits: a module is loaded into an idle context
  ASSERT_EQ(d->memset_d8_async(words, 0, 64, a), kSuccess);
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  BatchMemOp wait = mem_op(kMemOpWaitValue32, words, 7, kWaitGeq);
  ASSERT_EQ(d->stream_batch_mem_op(b, 1, &wait, 0), kSuccess);
  ASSERT_EQ(launch(add_kernel, b, 1, AddArgs{&order, 10}), kSuccess);
  ASSERT_EQ(launch(add_kernel, a, 1, AddArgs{&order, 1}), kSuccess);
  BatchMemOp writes[] = {mem_op(kMemOpWriteValue32, words + 4, 5), mem_op(kMemOpWriteValue32, words, 8)};
  ASSERT_EQ(d->stream_batch_mem_op(a, 2, writes, 0), kSuccess);
  ASSERT_EQ(d->stream_synchronize(b), kSuccess);
  EXPECT_EQ(order, 11);
  // Signed distance: 0x80000000 is not after 1, 0 is after 0xffffffff.
  BatchMemOp wrap[] = {mem_op(kMemOpWriteValue32, words, 0), mem_op(kMemOpWaitValue32, words, 0xffffffffu, kWaitGeq),
                       mem_op(kMemOpWaitValue32, words + 4, 4, kWaitAnd), mem_op(kMemOpWaitValue32, words, 0, kWaitEq)};
  ASSERT_EQ(d->stream_batch_mem_op(a, 4, wrap, 0), kSuccess);
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  BatchMemOp wrong = mem_op(kMemOpWriteValue32, words + 62, 0);
  EXPECT_EQ(d->stream_batch_mem_op(a, 1, &wrong, 0), kErrorInvalidValue);
  wrong = mem_op(kMemOpWriteValue32, reinterpret_cast<DevicePtr>(&order), 0);
  EXPECT_EQ(d->stream_batch_mem_op(a, 1, &wrong, 0), kErrorInvalidValue) << "host memory that is not registered";
  for (const Stream s : {a, b}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
  EXPECT_EQ(d->mem_free(words), kSuccess);
  unload();
}

TEST_F(FakeDriver, HostFunctionsMayNotCallCuda) {
  start();
  const Stream s = stream();
  struct Seen {
    const Driver* d;
    Result r = -1;
  } seen{d};
  ASSERT_EQ(d->launch_host_function(
                s,
                [](void* data) {
                  auto* at = static_cast<Seen*>(data);
                  int n;
                  at->r = at->d->device_count(&n);
                },
                &seen),
            kSuccess);
  ASSERT_EQ(d->stream_synchronize(s), kSuccess);
  EXPECT_EQ(seen.r, 800);
  EXPECT_EQ(d->stream_destroy(s), kSuccess);
}

TEST_F(FakeDriver, LaunchesWaitForRoom) {
  FakeMachine m = FakeMachine::uniform(1);
  m.resident_blocks = 8;
  start(m);
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  cuda_->add_kernel("add", {&add, sizeof(AddArgs), /*blocks_meet=*/false});
  const Stream a = stream(), b = stream(), c = stream();
  int value = 0;
  ASSERT_EQ(launch(function("meet"), a, 5, Meeting{&arrived, &wanted, 1}), kSuccess);
  while (arrived.load() < 5) sched_yield();
  ASSERT_EQ(launch(function("meet"), b, 4, Meeting{&arrived, &wanted, 1}), kSuccess);
  ASSERT_EQ(launch(function("meet"), c, 3, Meeting{&arrived, &wanted, 1}), kSuccess);
  while (arrived.load() < 8) sched_yield();
  EXPECT_EQ(arrived.load(), 8) << "three fit beside five, four do not";
  wanted = 1;
  EXPECT_EQ(d->context_synchronize(), kSuccess);
  EXPECT_EQ(arrived.load(), 12);
  // In waves: its blocks do not wait for one another.
  ASSERT_EQ(launch(function("add"), a, 100, AddArgs{&value, 1}), kSuccess);
  EXPECT_EQ(d->stream_synchronize(a), kSuccess);
  EXPECT_EQ(value, 1);
  LaunchAttribute cooperative{};
  cooperative.id = kLaunchCooperative;
  cooperative.cooperative = 1;
  EXPECT_EQ(launch(function("meet"), a, 9, Meeting{&arrived, &wanted, 1}, {cooperative}),
            kErrorCooperativeLaunchTooLarge);
  // Never begins: dropped with the machine.
  ASSERT_EQ(launch(function("meet"), a, 9, Meeting{&arrived, &wanted, 1}), kSuccess);
  EXPECT_EQ(d->stream_query(a), kErrorNotReady);
  for (const Stream s : {a, b, c}) EXPECT_EQ(d->stream_destroy(s), kSuccess);
  EXPECT_EQ(arrived.load(), 12);
  unload();
}

TEST_F(FakeDriver, LaunchCompletionIsTheBeginning) {
  start();
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  const Stream a = stream();
  const Event begun = event();
  LaunchAttribute attribute{};
  attribute.id = kLaunchCompletionEvent;
  attribute.launch_completion_event = {begun, 0};
  ASSERT_EQ(launch(function("meet"), a, 2, Meeting{&arrived, &wanted, 1}, {attribute}), kSuccess);
  EXPECT_EQ(d->event_synchronize(begun), kSuccess);
  EXPECT_EQ(d->stream_query(a), kErrorNotReady);
  wanted = 1;
  EXPECT_EQ(d->stream_synchronize(a), kSuccess);
  EXPECT_EQ(d->event_destroy(begun), kSuccess);
  EXPECT_EQ(d->stream_destroy(a), kSuccess);
  unload();
}

TEST_F(FakeDriver, ArgumentsAreTakenAtTheLaunch) {
  start();
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  cuda_->find_kernels_with([](std::string_view name) -> std::optional<FakeKernel> {
    if (name != "late") return std::nullopt;
    return FakeKernel{&add, sizeof(AddArgs)};
  });
  const Stream a = stream();
  int value = 0;
  AddArgs args{&value, 5};
  ASSERT_EQ(launch(function("meet"), a, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  LaunchConfig config{1, 1, 1, 32, 1, 1, 0, a, nullptr, 0};
  void* params[] = {&args};
  ASSERT_EQ(d->launch_kernel(&config, function("late"), params, nullptr), kSuccess);
  args.by = 1000;
  wanted = 1;
  ASSERT_EQ(d->stream_synchronize(a), kSuccess);
  EXPECT_EQ(value, 5);
  Function missing;
  EXPECT_EQ(d->module_get_function(&missing, module_, "missing"), kErrorNotFound);
  EXPECT_EQ(d->stream_destroy(a), kSuccess);
  unload();
}

TEST_F(FakeDriver, ErrorsCanBePlanned) {
  start();
  cuda_->fail("cuMemAlloc_v2", kErrorOutOfMemory, 2);
  const DevicePtr p = alloc(16);
  DevicePtr q = 0;
  EXPECT_EQ(d->mem_alloc(&q, 16), kErrorOutOfMemory);
  EXPECT_EQ(d->mem_alloc(&q, 16), kSuccess);
  EXPECT_EQ(cuda_->calls("cuMemAlloc_v2"), 3u);
  EXPECT_EQ(d->mem_free(p), kSuccess);
  EXPECT_EQ(d->mem_free(q), kSuccess);
  cuda_->break_device(0, kErrorIllegalAddress);
  EXPECT_EQ(d->mem_alloc(&q, 16), kErrorIllegalAddress);
  EXPECT_EQ(d->context_synchronize(), kErrorIllegalAddress);
  cuda_->break_device(0, kSuccess);
}

TEST_F(FakeDriver, LeaksAreNamed) {
  start();
  const Stream s = stream();
  const Event e = event();
  void* host = nullptr;
  ASSERT_EQ(d->mem_host_alloc(&host, 10, 0), kSuccess);
  const std::string text = cuda_->leaks();
  for (const char* what : {"1 streams", "1 events", "pinned host memory of 10 bytes", "context of device 1 retained 1"})
    EXPECT_NE(text.find(what), std::string::npos) << what << " in " << text;
  EXPECT_EQ(d->stream_destroy(s), kSuccess);
  EXPECT_EQ(d->event_destroy(e), kSuccess);
  EXPECT_EQ(d->mem_free_host(host), kSuccess);
}

TEST_F(FakeDriver, HandlesGiveBackInTheirOwnContext) {
  start();
  ASSERT_EQ(d->context_set_current(contexts[1]), kSuccess);
  auto memory = DeviceMemory::make(256);
  auto pinned = PinnedMemory::make(256);
  auto s = OwnedStream::make();
  auto e = OwnedEvent::make();
  ASSERT_TRUE(memory.ok() && pinned.ok() && s.ok() && e.ok());
  EXPECT_EQ(pinned->as<char>()[255], 0);
  ASSERT_EQ(d->memcpy_async(memory->get(), pinned->on_device(), 256, s->get()), kSuccess);
  ASSERT_EQ(d->event_record(e->get(), s->get()), kSuccess);
  ASSERT_EQ(d->event_synchronize(e->get()), kSuccess);
  DeviceMemory moved = std::move(*memory);
  EXPECT_EQ(memory->get(), 0u);
  ASSERT_EQ(d->context_set_current(nullptr), kSuccess);
  moved = DeviceMemory();
  EXPECT_EQ(cuda_->leaks().find("device memory"), std::string::npos) << cuda_->leaks();
  cuda_->fail("cuEventDestroy_v2", kErrorInvalidContext);  // ignored, and the event leaks: TearDown would find it
  *e = OwnedEvent();
  EXPECT_NE(cuda_->leaks().find("1 events"), std::string::npos);
  ASSERT_EQ(d->context_set_current(contexts[0]), kSuccess);
  ASSERT_EQ(d->primary_context_release(0), kSuccess);
  ASSERT_EQ(d->primary_context_release(1), kSuccess);
  *pinned = PinnedMemory();
  *s = OwnedStream();
  EXPECT_EQ(cuda_->leaks(), "1 events\n");
  cuda_.reset();
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RONDO_TEST_RACES 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define RONDO_TEST_RACES 1
#endif

struct RaiseArgs {
  int* value;
  std::atomic<int>* done;
};
void raise(const void* args, uint32_t, uint32_t) {
  const auto* a = static_cast<const RaiseArgs*>(args);
  ++*a->value;
  a->done->fetch_add(1, std::memory_order_relaxed);  // orders nothing
}

// If the host waits for a kernel that never ends, it lists its streams' operations after the deadline.
void wait_for_ever() {
  FakeMachine machine = FakeMachine::uniform(1);
  machine.deadline_s = 0.2;
  FakeCuda cuda(machine);
  cuda.add_kernel("meet", {&meet, sizeof(Meeting)});
  const Driver* d = driver();
  Context context;
  Stream s;
  Module module;
  Function function;
  std::atomic<int> arrived{0}, wanted{0};
  if (d->primary_context_retain(&context, 0) != kSuccess || d->context_set_current(context) != kSuccess ||
      d->stream_create(&s, kStreamNonBlocking, 0) != kSuccess || d->module_load_data(&module, "image") != kSuccess ||
      d->module_get_function(&function, module, "meet") != kSuccess)
    return;
  Meeting args{&arrived, &wanted, 1};
  void* params[] = {&args};
  LaunchConfig config{3, 1, 1, 32, 1, 1, 0, s, nullptr, 0};
  if (d->launch_kernel(&config, function, params, nullptr) == kSuccess) (void)d->stream_synchronize(s);
}

TEST(FakeCudaDeadline, SaysWhatStreamsDo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(wait_for_ever(),
               "the host, for a stream, has waited for 0.2 s.*a kernel, 0 operations after it.*"
               "device 0: 3 blocks resident");
}

// Two streams add to one value, and the host reads it when both have ended. Without the event, or without the
// synchronisation, CUDA gives no order, and the fake's own locks must not hide that.
int add_twice(bool with_event, bool with_synchronize) {
  FakeCuda cuda(FakeMachine::uniform(1));
  cuda.add_kernel("raise", {&raise, sizeof(RaiseArgs)});
  const Driver* d = driver();
  Context context;
  Stream streams[2];
  Event event;
  Module module;
  Function function;
  std::atomic<int> done{0};
  int value = 0, sum = 0;
  if (d->primary_context_retain(&context, 0) != kSuccess || d->context_set_current(context) != kSuccess ||
      d->stream_create(&streams[0], kStreamNonBlocking, 0) != kSuccess ||
      d->stream_create(&streams[1], kStreamNonBlocking, 0) != kSuccess ||
      d->event_create(&event, kEventDisableTiming) != kSuccess || d->module_load_data(&module, "image") != kSuccess ||
      d->module_get_function(&function, module, "raise") != kSuccess)
    return -1;
  for (int i = 0; i < 2; ++i) {
    RaiseArgs args{&value, &done};
    void* params[] = {&args};
    LaunchConfig config{1, 1, 1, 32, 1, 1, 0, streams[i], nullptr, 0};
    if (d->launch_kernel(&config, function, params, nullptr) != kSuccess) return -1;
    if (i == 1) break;
    while (done.load(std::memory_order_relaxed) == 0) sched_yield();  // so that the order could not be seen otherwise
    if (d->event_record(event, streams[0]) != kSuccess) return -1;
    if (with_event && d->stream_wait_event(streams[1], event, 0) != kSuccess) return -1;
  }
  while (done.load(std::memory_order_relaxed) < 2) sched_yield();
  if (with_synchronize && d->stream_synchronize(streams[1]) != kSuccess) return -1;
  size_t free_bytes, total;
  sum = d->mem_get_info(&free_bytes, &total) == kSuccess ? value : -1;
  for (const Stream s : streams) sum += d->stream_destroy(s) == kSuccess ? 0 : 100;
  return sum;
}

TEST(FakeCudaOrder, WhatCudaOrdersIsNoRace) { EXPECT_EQ(add_twice(true, true), 2); }

TEST(FakeCudaOrder, WhatCudaDoesNotOrderIsARace) {
#ifdef RONDO_TEST_RACES
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a separate child: forked ones see less
  constexpr int kReported = 66;
  EXPECT_EXIT(std::exit(add_twice(false, true)), ::testing::ExitedWithCode(kReported), "data race");
  EXPECT_EXIT(std::exit(add_twice(true, false)), ::testing::ExitedWithCode(kReported), "data race");
#else
  GTEST_SKIP() << "needs ThreadSanitizer";
#endif
}

}  // namespace
}  // namespace rondo::testing
