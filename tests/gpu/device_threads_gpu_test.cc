// On a real device: communicators of threads that share it give the oracle's bits, with both engines and all protocols;
// and a sequence of random calls.
// labels: gpu
// timeout: 400
// separate
#include <gtest/gtest.h>

#include "conformance/conformance_cases.h"
#include "gpu/gpu.h"

namespace rondo::testing {
namespace {

std::vector<Case> every(const std::vector<Case>& all, size_t stride) {
  std::vector<Case> cases;
  for (size_t i = 0; i < all.size(); i += stride) cases.push_back(all[i]);
  return cases;
}

void conform(int nranks, const std::string& settings, size_t stride) {
  run_cases(World::kThreads, nranks, Memory::kDevice,
            every(product_cases(nranks, Memory::kDevice), full_or_quick(stride, 300)), gpu_config(nranks, settings));
}

TEST(DeviceThreadsGpuTest, OneRank) {
  RONDO_NEEDS_GPU();
  conform(1, "", 4);
}
TEST(DeviceThreadsGpuTest, Interpreter) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 3, 4, 8}) conform(nranks, "device_engine = interpreter", nranks <= 3 ? 3 : 9);
}
TEST(DeviceThreadsGpuTest, EveryProtocol) {
  RONDO_NEEDS_GPU();
  for (const char* protocol : {"simple", "ll", "ll128"})
    conform(3, std::string("device_engine = interpreter\nproto = ") + protocol, 9);
}
TEST(DeviceThreadsGpuTest, Streams) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 3, 4}) conform(nranks, "device_engine = stream", 9);
}
TEST(DeviceThreadsGpuTest, ThroughHostMemory) {
  RONDO_NEEDS_GPU();
  for (const char* engine : {"interpreter", "stream"})
    conform(3, std::string("p2p_level = loc\ndevice_engine = ") + engine, 9);
}
TEST(DeviceThreadsGpuTest, Megabytes) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 4})
    run_cases(World::kThreads, nranks, Memory::kDevice, large_cases(nranks, full_or_quick(64 << 20, 64 << 10)),
              gpu_config(nranks));
}
// Random calls, one after the other, without barriers.
TEST(DeviceThreadsGpuTest, TenThousandRandomCalls) {
  RONDO_NEEDS_GPU();
  for (const int nranks : {2, 4, 8}) {
    std::vector<Case> cases;
    const std::vector<Case> all = product_cases(nranks, Memory::kDevice);
    for (size_t i = 0; i < full_or_quick(3400, 20); ++i) cases.push_back(all[i * 7919 % all.size()]);
    run_cases(World::kThreads, nranks, Memory::kDevice, cases, gpu_config(nranks));
  }
}

}  // namespace
}  // namespace rondo::testing
