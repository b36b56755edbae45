// The fake CUDA driver among processes: IPC handles, children, errors for freed memory.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "device/driver/handles.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

using namespace rondo::cuda;

// Shared by the processes: steps to wait for, and handles.
struct Page {
  std::atomic<int> step{0};
  IpcMemHandle handle, freed;

  void reach(int s) { step = s; }
  void await(int s) {
    while (step.load() < s) sched_yield();
  }
};

Page* make_page() {
  void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (at) Page;
}

void run(const std::function<void(Rank)>& fn) {
  SpawnOptions options;
  options.deadline_s = 60;
  report(run_processes_bare(
             2,
             [&](Rank rank) {
               fn(rank);
               return Status();
             },
             options),
         options);
}

TEST(FakeCudaProcesses, MemoryIsSharedByHandles) {
  Page* page = make_page();
  run([&](Rank rank) {
    FakeMachine machine = FakeMachine::uniform(2);
    FakeCuda cuda(machine);
    const Driver* d = driver();
    {
      auto context = PrimaryContext::retain(rank);
      ASSERT_TRUE(context.ok());
      const CurrentContext current(context->get());
      auto stream = OwnedStream::make();
      ASSERT_TRUE(stream.ok());
      if (rank == 0) {
        auto pad = DeviceMemory::make(100);  // so that the shared allocation is inside its block
        auto memory = DeviceMemory::make(4096);
        ASSERT_TRUE(memory.ok() && pad.ok());
        ASSERT_EQ(d->memset_d8_async(memory->get(), 0, 4096, stream->get()), kSuccess);
        ASSERT_EQ(d->stream_synchronize(stream->get()), kSuccess);
        ASSERT_EQ(d->ipc_get_mem_handle(&page->handle, memory->get() + 8), kSuccess);
        DevicePtr mine;
        EXPECT_EQ(d->ipc_open_mem_handle(&mine, page->handle, kIpcLazyPeerAccess), kErrorInvalidContext);
        auto gone = DeviceMemory::make(3 << 20);
        ASSERT_EQ(d->ipc_get_mem_handle(&page->freed, gone->get()), kSuccess);
        *gone = DeviceMemory();
        page->reach(1);
        // The other process's stream sets a word in our memory, and our stream sees it.
        BatchMemOp wait;
        std::memset(&wait, 0, sizeof wait);
        wait.value.operation = kMemOpWaitValue32;
        wait.value.address = memory->get() + 64;
        wait.value.value = 1;
        wait.value.flags = kWaitGeq;
        ASSERT_EQ(d->stream_batch_mem_op(stream->get(), 1, &wait, 0), kSuccess);
        ASSERT_EQ(d->stream_synchronize(stream->get()), kSuccess);
        char text[8];
        ASSERT_EQ(d->memcpy_device_to_host(text, memory->get() + 128, 8), kSuccess);
        EXPECT_STREQ(text, "written");
        ASSERT_EQ(d->ipc_get_mem_handle(&page->freed, pad->get()), kSuccess);
        *pad = DeviceMemory();
        page->reach(2);
        page->await(3);
      } else {
        page->await(1);
        DevicePtr theirs = 0, again = 0;
        EXPECT_EQ(d->ipc_open_mem_handle(&theirs, page->freed, kIpcLazyPeerAccess), kErrorInvalidHandle);
        ASSERT_EQ(d->ipc_open_mem_handle(&theirs, page->handle, kIpcLazyPeerAccess), kSuccess);
        ASSERT_EQ(d->ipc_open_mem_handle(&again, page->handle, kIpcLazyPeerAccess), kSuccess);
        EXPECT_EQ(again, theirs);
        EXPECT_EQ(d->ipc_close_mem_handle(again), kSuccess);
        DevicePtr base = 0;
        size_t bytes = 0;
        ASSERT_EQ(d->mem_get_address_range(&base, &bytes, theirs + 100), kSuccess);
        EXPECT_EQ(base, theirs);
        EXPECT_EQ(bytes, 4096u);
        int device = -1;
        ASSERT_EQ(d->pointer_attribute(&device, kPointerDeviceOrdinal, theirs), kSuccess);
        EXPECT_EQ(device, 0);
        IpcMemHandle second_hand;
        EXPECT_EQ(d->ipc_get_mem_handle(&second_hand, theirs), kErrorInvalidValue);
        ASSERT_EQ(d->memcpy_host_to_device_async(theirs + 128, "written", 8, stream->get()), kSuccess);
        BatchMemOp write;
        std::memset(&write, 0, sizeof write);
        write.value.operation = kMemOpWriteValue32;
        write.value.address = theirs + 64;
        write.value.value = 1;
        ASSERT_EQ(d->stream_batch_mem_op(stream->get(), 1, &write, 0), kSuccess);
        page->await(2);
        DevicePtr none = 0;
        EXPECT_EQ(d->ipc_open_mem_handle(&none, page->freed, kIpcLazyPeerAccess), kErrorInvalidHandle)
            << "freed, in a block that lives";
        EXPECT_NE(cuda.leaks().find("mapping of 4096 bytes"), std::string::npos) << cuda.leaks();
        EXPECT_EQ(d->ipc_close_mem_handle(theirs), kSuccess);
        EXPECT_EQ(d->ipc_close_mem_handle(theirs), kErrorInvalidValue);
        page->reach(3);
      }
    }
    EXPECT_EQ(cuda.leaks(), "");
  });
}

TEST(FakeCudaProcesses, AHandleNeedsPeerAccess) {
  Page* page = make_page();
  run([&](Rank rank) {
    FakeMachine machine = FakeMachine::uniform(2);
    machine.peers.assign(2, std::vector<FakePeer>(2, FakePeer{false, false}));
    FakeCuda cuda(machine);
    auto context = PrimaryContext::retain(rank);
    const CurrentContext current(context->get());
    if (rank == 0) {
      auto memory = DeviceMemory::make(64);
      ASSERT_EQ(driver()->ipc_get_mem_handle(&page->handle, memory->get()), kSuccess);
      page->reach(1);
      page->await(2);
      return;
    }
    page->await(1);
    DevicePtr theirs = 0;
    EXPECT_EQ(driver()->ipc_open_mem_handle(&theirs, page->handle, kIpcLazyPeerAccess), kErrorPeerAccessUnsupported);
    page->reach(2);
  });
}

TEST(FakeCudaProcesses, ChildrenStartCleanOnlyBeforeTheFirstUse) {
  {
    FakeCuda unused(FakeMachine::uniform(1));
    run([&](Rank) {
      int n = 0;
      EXPECT_EQ(driver()->device_count(&n), kSuccess);
      EXPECT_EQ(n, 1);
    });
  }
  FakeCuda used(FakeMachine::uniform(1));
  int n = 0;
  ASSERT_EQ(driver()->device_count(&n), kSuccess);
  run([&](Rank) {
    const Status status = check(driver()->device_count(&n), "cuDeviceGetCount");
    EXPECT_NE(status.message().find("forked after CUDA was used"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace rondo::testing
