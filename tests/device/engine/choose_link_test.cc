// The link between two ranks' devices, as ranks of a communicator choose it.
// labels: unit
// links: host_kernels
#include <gtest/gtest.h>

#include <cstring>

#include "device/device_side.h"
#include "device/topology/probe.h"
#include "support/emulated_cuda.h"

namespace rondo::testing {
namespace {

CudaTransport::DeviceOfRank rank_on(int device, int process) {
  CudaTransport::DeviceOfRank d;
  d.uuid.bytes[0] = static_cast<unsigned char>(device + 1);
  std::snprintf(d.pci_bus_id, sizeof d.pci_bus_id, "0000:%02x:00.0", device + 1);
  d.capability = 90;
  d.multiprocessors = 132;
  d.process_mark = static_cast<uint64_t>(process);
  return d;
}

// As with CUDA_VISIBLE_DEVICES for each task: this process sees the first device only.
TEST(ChooseLink, ADeviceOfAnotherProcessNeedNotBeVisible) {
  const FakeNvml nvml(linked_devices(2));
  GpuMachine machine = linked_devices(1);
  machine.devices[0].uuid = "GPU-" + uuid_text(rank_on(0, 0).uuid);
  for (int i = 0; i < 2; ++i) {  // the second time it is known
    const DeviceLink link = choose_link(machine, {}, rank_on(0, 0), rank_on(1, 1));
    EXPECT_EQ(link.way, DeviceLink::Way::kPeer);
    EXPECT_TRUE(link.whole_lines);
    EXPECT_DOUBLE_EQ(link.gigabytes_per_s, 4 * 20.6);
    EXPECT_EQ(machine.devices.size(), 2u);
  }
}

TEST(ChooseLink, ContainersAreJoinedByHostMemory) {
  const FakeNvml nvml(linked_devices(2));
  GpuMachine machine = linked_devices(2);
  for (int d = 0; d < 2; ++d) machine.devices[static_cast<size_t>(d)].uuid = "GPU-" + uuid_text(rank_on(d, 0).uuid);
  CudaTransport::DeviceOfRank a = rank_on(0, 0), b = rank_on(1, 1), same_device = rank_on(0, 1);
  EXPECT_EQ(choose_link(machine, {}, a, b).way, DeviceLink::Way::kPeer);
  EXPECT_EQ(choose_link(machine, {}, a, same_device).way, DeviceLink::Way::kSameDevice);
  a.container = 5;
  EXPECT_EQ(choose_link(machine, {}, a, b).way, DeviceLink::Way::kHost);
  EXPECT_EQ(choose_link(machine, {}, a, same_device).way, DeviceLink::Way::kHost);
}

}  // namespace
}  // namespace rondo::testing
