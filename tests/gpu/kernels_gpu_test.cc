// On a real device: the reduction kernels give the bits of the host's kernels, for every type and operator, aligned and
// not, ragged counts, several sources and sinks; and the copy.
// labels: gpu
// timeout: 120
// separate
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/images.h"
#include "device/engine/lower.h"
#include "gpu/gpu.h"
#include "kernels/kernels.h"

namespace rondo::testing {
namespace {

constexpr uint64_t kMostElems = 40'000;
constexpr uint32_t kArrays = 5;  // three sources, two sinks
constexpr uint64_t kArrayBytes = kMostElems * 8 + 256;

class KernelsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RONDO_NEEDS_GPU();
    context_ = std::move(*cuda::PrimaryContext::retain(0));
    ASSERT_EQ(cuda::driver()->context_set_current(context_.get()), 0);
    stream_ = std::move(*cuda::OwnedStream::make());
    device_ = std::move(*cuda::DeviceMemory::make(kArrays * kArrayBytes));
    kernels_ = KernelLoader::of(context_.get());
    host_.resize(kArrays * kArrayBytes);
  }

  // Runs the device's and the host's kernel on the same bytes. Returns the first array that differs, or -1.
  int differs(std::string_view kernel, Kernel on_host, uint32_t elem_bytes, uint32_t num_src, uint32_t num_dst,
              uint64_t num_elems, uint32_t shift_elems, uint32_t divide_by) {
    for (std::byte& b : host_) b = static_cast<std::byte>(random_());
    const auto at = [](const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); };
    EXPECT_TRUE(cuda::upload(nullptr, device_.get(), host_.data(), host_.size()).ok());
    ReduceArgs args{};
    KernelArgs expected;
    std::vector<const void*> sources;
    std::vector<void*> sinks;
    for (uint32_t i = 0; i < num_src; ++i) {
      const uint64_t offset = i * kArrayBytes + shift_elems * elem_bytes;
      args.src[args.step.num_src++] = device_.as() + offset;
      sources.push_back(host_.data() + offset);
    }
    for (uint32_t i = 0; i < num_dst; ++i) {
      const uint64_t offset = (3 + i) * kArrayBytes + (i + shift_elems) * elem_bytes;
      args.dst[args.step.num_dst++] = device_.as() + offset;
      sinks.push_back(host_.data() + offset);
    }
    args.step.num_elems = num_elems;
    args.step.own = UINT32_MAX;
    args.step.divide_by = divide_by;
    auto function = kernels_->find(collective_images(), kernel);
    EXPECT_TRUE(function.ok()) << function.status().to_string();
    if (!function.ok()) return -2;
    void* params[] = {&args};
    cuda::LaunchConfig config{7, 1, 1, 512, 1, 1, 0, stream_.get(), nullptr, 0};
    EXPECT_EQ(cuda::driver()->launch_kernel(&config, *function, params, nullptr), 0) << kernel;
    EXPECT_EQ(cuda::driver()->stream_synchronize(stream_.get()), 0) << kernel;
    std::vector<std::byte> found(host_.size());
    EXPECT_EQ(cuda::driver()->memcpy_device_to_host(found.data(), at(device_.as()), found.size()), 0);
    expected.src = sources.data();
    expected.dst = sinks.data();
    expected.num_src = num_src;
    expected.num_dst = num_dst;
    expected.num_elems = num_elems;
    expected.divide_by = divide_by;
    on_host(expected);
    for (uint32_t a = 0; a < kArrays; ++a)
      if (std::memcmp(found.data() + a * kArrayBytes, host_.data() + a * kArrayBytes, kArrayBytes) != 0)
        return static_cast<int>(a);
    return -1;
  }

  cuda::PrimaryContext context_;
  cuda::OwnedStream stream_;
  cuda::DeviceMemory device_;
  std::shared_ptr<KernelLoader> kernels_;
  std::vector<std::byte> host_;
  std::mt19937_64 random_{20261121};
};

TEST_F(KernelsGpuTest, BitsOfTheHostsKernels) {
  const KernelTable& table = *kernel_table(SimdLevel::kBaseline);
  const uint64_t most = full_or_quick(kMostElems - 7, 2003);
  for (int t = 0; t < kNumDtypes; ++t)
    for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg}) {
      const auto dtype = static_cast<Dtype>(t);
      const Kernel on_host = table.reduce[t][static_cast<int>(op)];
      uint32_t shift = 0;
      for (const uint64_t n : {uint64_t{0}, uint64_t{1}, uint64_t{1009}, most})
        for (const uint32_t num_src : {2u, 3u})
          for (const uint32_t num_dst : {1u, 2u})
            EXPECT_EQ(differs(reduce_name(dtype, op), on_host, dtype_bytes(dtype), num_src, num_dst, n, shift++ % 3,
                              op == Op::kAvg ? 3 : 0),
                      -1)
                << dtype_name(dtype) << " " << op_name(op) << ", " << n << " elements, " << num_src << " into " << num_dst;
    }
}

TEST_F(KernelsGpuTest, Copy) {
  const Kernel copy = kernel_table(SimdLevel::kBaseline)->copy;
  for (const uint64_t n : {uint64_t{1}, uint64_t{4097}, kMostElems})
    EXPECT_EQ(differs(kGridCopyName, copy, 1, 1, 2, n, 5, 0), -1) << n;
}

}  // namespace
}  // namespace rondo::testing
