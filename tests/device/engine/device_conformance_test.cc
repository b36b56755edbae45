// Communicators of device memory give the oracle's bits: every algorithm, types and operators, by the interpreter, by
// streams and through host memory, on emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include <gtest/gtest.h>

#include <set>

#include "conformance/conformance_cases.h"
#include "support/emulated_cuda.h"

namespace rondo::testing {
namespace {

// A sample of the full product: one case of every algorithm, and a choice of the rest, most of them sums of float.
std::vector<Case> sample(int nranks) {
  std::vector<Case> cases;
  std::set<std::pair<Collective, const Algorithm*>> seen;
  size_t i = 0;
  for (const Case& c : product_cases(nranks, Memory::kDevice)) {
    if (c.count_elems > 40'000) continue;
    const bool sums = c.dtype == Dtype::kFloat32 && c.op == Op::kSum && !c.in_place;
    const bool first = seen.emplace(c.collective, c.algorithm).second;
    if (first || ++i % (kSanitized ? 32 : sums ? 3 : 12) == 0) cases.push_back(c);
  }
  return cases;
}

void conform(FakeMachine machine, int nranks, const std::string& settings) {
  machine.block_threads = 2;
  EmulatedCuda cuda(machine);
  run_cases(World::kThreads, nranks, Memory::kDevice, sample(nranks), device_config(settings));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

void conform(int devices, int nranks, const std::string& settings) {
  conform(FakeMachine::uniform(devices), nranks, settings);
}

TEST(DeviceConformanceTest, OneRank) { conform(1, 1, ""); }
TEST(DeviceConformanceTest, RanksOnOneDevice) {
  for (const int nranks : {2, 3, 4}) conform(1, nranks, "device_blocks = -6");
}
TEST(DeviceConformanceTest, RanksOnDevicesOfTheirOwn) {
  for (const int nranks : {2, 3}) conform(nranks, nranks, "device_blocks = -9");
}
TEST(DeviceConformanceTest, RanksOnLinkedDevices) {
  for (const int nranks : {2, 3}) {
    const FakeNvml nvml(linked_devices(nranks));
    conform(fake_machine(linked_devices(nranks)), nranks, "device_blocks = -9");
  }
}
TEST(DeviceConformanceTest, ByStreams) {
  for (const int nranks : {1, 2, 3, 5}) conform(1, nranks, "device_engine = stream");
}
TEST(DeviceConformanceTest, ThroughHostMemory) { conform(3, 3, "p2p_level = loc"); }
TEST(DeviceConformanceTest, ThroughHostMemoryOnOneDevice) {
  conform(1, 2, "p2p_level = loc");
  conform(1, 2, "p2p_level = loc\ndevice_engine = stream");
}

}  // namespace
}  // namespace rondo::testing
