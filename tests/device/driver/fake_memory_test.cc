// The fake CUDA driver, through rondo's table: devices, contexts, memory and copies.
// labels: unit tsan
// timeout: 120
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "device/driver/fake_cuda_fixture.h"

namespace rondo::testing {
namespace {

class FakeMemory : public Fake {};

TEST_F(FakeMemory, DevicesAreWhatTheMachineSays) {
  FakeMachine m = FakeMachine::uniform(3);
  m.devices[1].name = "NVIDIA H100";
  m.devices[1].attributes[kAttrMemoryClockRate] = 7;
  m.peers.assign(3, std::vector<FakePeer>(3));
  m.peers[0][2].access = false;
  start(m);
  EXPECT_EQ(why_no_driver(), "");
  char name[64], bus[16];
  ASSERT_EQ(d->device_name(name, sizeof name, 1), kSuccess);
  EXPECT_STREQ(name, "NVIDIA H100");
  ASSERT_EQ(d->device_pci_bus_id(bus, sizeof bus, 2), kSuccess);
  EXPECT_STREQ(bus, "0000:03:00.0");
  int value = 0;
  ASSERT_EQ(d->device_attribute(&value, kAttrMemoryClockRate, 1), kSuccess);
  EXPECT_EQ(value, 7);
  ASSERT_EQ(d->device_attribute(&value, kAttrMultiprocessorCount, 1), kSuccess);
  EXPECT_EQ(value, 132);
  Uuid a, b;
  ASSERT_EQ(d->device_uuid(&a, 0), kSuccess);
  ASSERT_EQ(d->device_uuid(&b, 1), kSuccess);
  EXPECT_NE(std::memcmp(&a, &b, sizeof a), 0);
  int can = -1;
  ASSERT_EQ(d->device_can_access_peer(&can, 0, 2), kSuccess);
  EXPECT_EQ(can, 0);
  ASSERT_EQ(d->device_can_access_peer(&can, 2, 0), kSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(d->device_get(&can, 3), kErrorInvalidDevice);
  EXPECT_EQ(d->context_enable_peer_access(contexts[2], 0), kErrorPeerAccessUnsupported);
  EXPECT_EQ(d->context_enable_peer_access(contexts[1], 0), kSuccess);
  EXPECT_EQ(d->context_enable_peer_access(contexts[1], 0), kErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(std::string(check(kErrorPeerAccessUnsupported, "cuX").message()),
            "cuX: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED (217: peer access is not supported between these two devices)");
}

TEST_F(FakeMemory, CurrentContextIsOfTheThreadAndPutBack) {
  start();
  {
    const CurrentContext second(contexts[1]);
    Device device = -1;
    ASSERT_EQ(d->context_get_device(&device), kSuccess);
    EXPECT_EQ(device, 1);
  }
  Context now = nullptr;
  ASSERT_EQ(d->context_get_current(&now), kSuccess);
  EXPECT_EQ(now, contexts[0]);
  std::thread([&] {
    Context none = contexts[0];
    EXPECT_EQ(d->context_get_current(&none), kSuccess);
    EXPECT_EQ(none, nullptr);
    DevicePtr p = 0;
    EXPECT_EQ(d->mem_alloc(&p, 16), kErrorInvalidContext);
    EXPECT_EQ(OwnedStream::make().status().message(), "no CUDA context is current in this thread");
  }).join();
}

TEST_F(FakeMemory, AddressesAreKnownByTheirAllocation) {
  start();
  const DevicePtr small = alloc(1000), other = alloc(8), large = alloc(3 << 20);
  DevicePtr base = 0;
  size_t bytes = 0;
  ASSERT_EQ(d->mem_get_address_range(&base, &bytes, small + 999), kSuccess);
  EXPECT_EQ(base, small);
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(d->mem_get_address_range(&base, &bytes, small + 1000), kErrorNotFound);
  EXPECT_EQ(large % (2 << 20), 0u);
  EXPECT_EQ(small / (2 << 20), other / (2 << 20)) << "small ones share a block";
  unsigned type = 0;
  ASSERT_EQ(d->pointer_attribute(&type, kPointerMemoryType, other), kSuccess);
  EXPECT_EQ(type, kMemoryTypeDevice);
  uint64_t first = 0, second = 0;
  ASSERT_EQ(d->pointer_attribute(&first, kPointerBufferId, small), kSuccess);
  ASSERT_EQ(d->pointer_attribute(&second, kPointerBufferId, other), kSuccess);
  EXPECT_NE(first, second);
  void* host = nullptr;
  ASSERT_EQ(d->mem_host_alloc(&host, 100, kHostAllocPortable | kHostAllocMapped), kSuccess);
  ASSERT_EQ(d->mem_host_get_device_pointer(&base, host, 0), kSuccess);
  EXPECT_EQ(base, reinterpret_cast<DevicePtr>(host));
  ASSERT_EQ(d->pointer_attribute(&type, kPointerMemoryType, base), kSuccess);
  EXPECT_EQ(type, kMemoryTypeHost);
  int local = 0;
  EXPECT_EQ(d->pointer_attribute(&type, kPointerMemoryType, reinterpret_cast<DevicePtr>(&local)), kErrorInvalidValue);
  EXPECT_EQ(d->mem_free(small + 8), kErrorInvalidValue);
  for (const DevicePtr p : {small, other, large}) EXPECT_EQ(d->mem_free(p), kSuccess);
  EXPECT_EQ(d->mem_free(large), kErrorInvalidValue) << "freed twice";
  EXPECT_EQ(d->mem_free_host(host), kSuccess);
}

TEST_F(FakeMemory, RegisteredMemoryIsRefusedTwice) {
  start();
  std::vector<std::byte> memory(8192);
  {
    auto registered = RegisteredMemory::make(memory);
    ASSERT_TRUE(registered.ok()) << registered.status().to_string();
    EXPECT_EQ(registered->on_device(), reinterpret_cast<DevicePtr>(memory.data()));
    EXPECT_EQ(d->mem_host_register(memory.data() + 4096, 4096, 0), kErrorHostMemoryAlreadyRegistered);
  }
  EXPECT_EQ(d->mem_host_unregister(memory.data()), kErrorHostMemoryNotRegistered);
}

TEST_F(FakeMemory, MemoryHasItsLimitAndItsOverrunsAreFound) {
  FakeMachine m = FakeMachine::uniform(1);
  m.devices[0].memory_bytes = 1 << 20;
  start(m);
  DevicePtr p = 0;
  EXPECT_EQ(d->mem_alloc(&p, (1 << 20) + 1), kErrorOutOfMemory);
  EXPECT_EQ(DeviceMemory::make((1 << 20) + 1).status().code(), StatusCode::kExhausted);
  p = alloc(100);
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(d->mem_get_info(&free_bytes, &total), kSuccess);
  EXPECT_EQ(free_bytes, total - 100);
  EXPECT_NE(cuda_->leaks().find("device memory of 100 bytes"), std::string::npos) << cuda_->leaks();
  reinterpret_cast<char*>(p)[100] = 1;
  ASSERT_EQ(d->mem_free(p), kSuccess);
  EXPECT_NE(cuda_->leaks().find("byte 0 behind"), std::string::npos) << cuda_->leaks();
  ASSERT_EQ(d->primary_context_release(0), kSuccess);
  cuda_.reset();  // TearDown would find the damage
}

TEST_F(FakeMemory, CopiesAndFillsAreOrderedAndChecked) {
  start();
  const DevicePtr a = alloc(4096), b = alloc(4096);
  const Stream s = stream();
  std::vector<char> in(4096, 'x'), out(4096);
  std::atomic<int> arrived{0}, wanted{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  ASSERT_EQ(launch(function("meet"), s, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  ASSERT_EQ(d->memset_d8_async(a, 'a', 4096, s), kSuccess);
  ASSERT_EQ(d->memcpy_host_to_device_async(a + 1, in.data(), 4000, s), kSuccess);
  std::fill(in.begin(), in.end(), 'y');  // pageable memory was copied
  wanted = 1;
  ASSERT_EQ(d->memcpy_async(b, a, 4096, s), kSuccess);
  ASSERT_EQ(d->stream_synchronize(s), kSuccess);
  ASSERT_EQ(d->memcpy_device_to_host(out.data(), b, 4096), kSuccess);
  EXPECT_EQ(out[0], 'a');
  EXPECT_EQ(out[1], 'x');
  EXPECT_EQ(out[4001], 'a');
  EXPECT_EQ(d->memcpy_async(b + 1, a, 4096, s), kErrorInvalidValue) << "beyond the end";
  EXPECT_EQ(d->memset_d8_async(reinterpret_cast<DevicePtr>(out.data()), 0, 1, s), kErrorInvalidValue);
  EXPECT_EQ(d->mem_free(a), kSuccess);
  EXPECT_EQ(d->memset_d8_async(a, 0, 1, s), kErrorInvalidValue) << "freed";
  EXPECT_EQ(d->mem_free(b), kSuccess);
  EXPECT_EQ(d->stream_destroy(s), kSuccess);
  EXPECT_EQ(d->stream_synchronize(s), kErrorInvalidHandle);
  unload();
}

TEST_F(FakeMemory, FreeingWaitsForTheDevice) {
  start();
  const DevicePtr p = alloc(64);
  void* host = nullptr;
  ASSERT_EQ(d->mem_host_alloc(&host, 64, kHostAllocPortable), kSuccess);
  const Stream s = stream();
  std::atomic<int> arrived{0}, wanted{0}, freed{0};
  cuda_->add_kernel("meet", {&meet, sizeof(Meeting)});
  ASSERT_EQ(launch(function("meet"), s, 1, Meeting{&arrived, &wanted, 1}), kSuccess);
  std::thread other([&] {
    EXPECT_EQ(d->context_set_current(contexts[0]), kSuccess);
    EXPECT_EQ(d->mem_free(p), kSuccess);
    ++freed;
    EXPECT_EQ(d->mem_free_host(host), kSuccess);
    ++freed;
  });
  while (cuda_->calls("cuMemFree_v2") == 0) sched_yield();
  for (int i = 0; i < 1000; ++i) sched_yield();
  EXPECT_EQ(freed.load(), 0);
  wanted = 1;
  other.join();
  EXPECT_EQ(freed.load(), 2);
  EXPECT_EQ(d->stream_destroy(s), kSuccess);
  unload();
}

}  // namespace
}  // namespace rondo::testing
