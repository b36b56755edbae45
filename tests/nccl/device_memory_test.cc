// Device memory is refused where a CUDA driver can tell: here one of ours (fake_cuda.c), loaded as programs load
// theirs.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>

#include "nccl/nccl_ranks.h"

namespace rondo::testing {
namespace {

TEST(NcclDeviceMemory, IsRefusedByName) {
  ncclComm_t before;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&before, 1, nullptr)));
  std::array<float, 12> x = {};
  float* device = &x[8];                                                                           // x[4..7] is managed
  EXPECT_TRUE(succeeds(ncclAllReduce(device, device, 1, ncclFloat32, ncclSum, before, nullptr)));  // nobody can tell

  void* driver = ::dlopen(RONDO_FAKE_CUDA, RTLD_NOW);
  ASSERT_NE(driver, nullptr) << ::dlerror();
  const auto set = reinterpret_cast<void (*)(uint64_t, uint64_t)>(::dlsym(driver, "fake_cuda_set"));
  set(reinterpret_cast<uintptr_t>(device), reinterpret_cast<uintptr_t>(x.end()));
  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  const auto reduce = [&](const float* in, float* out) {
    return ncclAllReduce(in, out, 1, ncclFloat32, ncclSum, comm, nullptr);
  };
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"sendbuff is device memory", "NVIDIA"}, reduce(device, &x[0])));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"recvbuff is device memory"}, reduce(&x[0], device)));
  EXPECT_TRUE(succeeds(reduce(&x[0], &x[1])));
  EXPECT_TRUE(succeeds(reduce(&x[4], &x[5])));
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"device memory"}, ncclSend(device, 1, ncclFloat32, 0, comm, nullptr)));
  EXPECT_TRUE(returns(ncclInvalidUsage, ncclGroupEnd()));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(before)));
}

}  // namespace
}  // namespace rondo::testing
