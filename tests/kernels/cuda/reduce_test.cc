// The CUDA reductions on host threads, against the host's kernels: every dtype and op, every bit.
// labels: unit tsan
// links: host_kernels
// timeout: 300
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/engine/grid_reduce.h"
#include "device/engine/lower.h"
#include "kernels/kernels.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {
namespace {

constexpr uint32_t kMaxSources = ReduceArgs::kMaxSources, kMaxSinks = ReduceArgs::kMaxSinks;

// Sources with any bits, and sinks of the kernel and of the host, with room for a shift and a guard.
struct Buffers {
  static constexpr uint64_t kGuard = 64;
  std::vector<std::vector<uint8_t>> src, device, host;

  Buffers(uint32_t num_src, uint64_t bytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint32_t s = 0; s < num_src; ++s) {
      src.emplace_back(bytes + 2 * kGuard);
      for (uint8_t& b : src.back()) b = static_cast<uint8_t>(random());
      // Special values are rare in random bits: rows of ones and zeros make NaN, infinity, zeros and subnormals.
      for (uint64_t i = 0; i + 8 < src.back().size(); i += 8 + random() % 56)
        std::memset(src.back().data() + i,
                    static_cast<int>(random() % 3 == 0   ? 0xff
                                     : random() % 2 == 0 ? 0
                                                         : 0x7f),
                    1 + random() % 8);
    }
    device.assign(kMaxSinks, std::vector<uint8_t>(bytes + 2 * kGuard, 0xab));
    host = device;
  }
};

struct Shape {
  uint32_t num_src, num_dst;
  uint64_t num_elems;
  uint32_t src_shift, dst_shift;  // elements from alignment
  bool in_place;                  // sink 0 is source 0
};

const Shape kShapes[] = {
    {1, 1, 1000, 0, 0, false}, {2, 1, 1000, 0, 0, false}, {2, 2, 1003, 0, 0, false}, {3, 1, 777, 0, 0, false},
    {2, 1, 1000, 1, 1, false}, {2, 1, 1001, 1, 0, false}, {2, 2, 515, 0, 3, false},  {5, 3, 100, 1, 1, false},
    {2, 1, 999, 0, 0, true},   {4, 4, 64, 3, 3, true},    {2, 1, 0, 0, 0, false},    {2, 1, 1, 0, 0, false},
    {2, 1, 7, 1, 1, false},    {16, 1, 70, 0, 0, false},  {1, 2, 301, 2, 2, false},  {2, 1, 4096, 0, 0, false},
};

void set_pointers(const Shape& shape, uint32_t bytes_of_src, uint32_t bytes_of_dst, Buffers& b,
                  std::vector<std::vector<uint8_t>>& sinks, const void** src, void** dst) {
  for (uint32_t s = 0; s < shape.num_src; ++s)
    src[s] = b.src[s].data() + Buffers::kGuard + shape.src_shift * bytes_of_src;
  for (uint32_t d = 0; d < shape.num_dst; ++d)
    dst[d] = sinks[d].data() + Buffers::kGuard + shape.dst_shift * bytes_of_dst;
  if (!shape.in_place) return;
  std::memcpy(dst[0], src[0], shape.num_elems * bytes_of_src);
  src[0] = dst[0];
}

TEST(Reduce, EveryDtypeAndOpGivesTheHostsBits) {
  const KernelTable& host = *kernel_table(SimdLevel::kBaseline);
  uint64_t seed = 1;
  for (int t = 0; t < kNumDtypes; ++t)
    for (int o = 0; o < kNumArithmeticOps; ++o)
      for (const uint32_t divisor : {0u, 3u, 4u, 200u}) {
        const Dtype dtype = static_cast<Dtype>(t);
        const Op op = static_cast<Op>(o);
        if ((op == Op::kAvg) != (divisor != 0)) continue;
        const HostKernel kernel = find_host_kernel(reduce_name(dtype, op));
        ASSERT_NE(kernel, nullptr) << reduce_name(dtype, op);
        for (const Shape& shape : kShapes) {
          const uint32_t bytes = dtype_bytes(dtype);
          Buffers b(shape.num_src, (shape.num_elems + 4) * bytes, ++seed);
          ReduceArgs args{};
          KernelArgs wanted{};
          const void* src[kMaxSources];
          void* dst[kMaxSinks];
          uint64_t scale = seed * 0x9E3779B97F4A7C15u;
          if (accumulator_of(dtype) == Dtype::kFloat32) {
            const float f = seed % 2 == 0 ? -1.75f : 0.333f;
            std::memcpy(&scale, &f, 4);
          } else if (dtype == Dtype::kFloat64) {
            const double f = seed % 2 == 0 ? -1.75 : 0.333;
            std::memcpy(&scale, &f, 8);
          }
          set_pointers(shape, bytes, bytes, b, b.host, src, dst);
          wanted.src = src;
          wanted.dst = dst;
          wanted.num_src = shape.num_src;
          wanted.num_dst = shape.num_dst;
          wanted.num_elems = shape.num_elems;
          wanted.divide_by = divisor;
          if (op == Op::kPremulSum) {
            wanted.own = static_cast<uint32_t>(seed % shape.num_src);
            wanted.premul = &scale;
          }
          host.reduce[t][o](wanted);
          set_pointers(shape, bytes, bytes, b, b.device, args.src, args.dst);
          args.step.num_src = shape.num_src;
          args.step.num_dst = shape.num_dst;
          args.step.num_elems = shape.num_elems;
          args.step.divide_by = divisor;
          args.step.own = wanted.own;
          args.step.scale_own = op == Op::kPremulSum;
          std::memcpy(args.premul, &scale, 8);
          kernel(&args, 1 + seed % 2, 1u << seed % 3);
          ASSERT_EQ(b.device, b.host) << reduce_name(dtype, op) << ", " << op_name(op) << ", " << shape.num_src << " x "
                                      << shape.num_dst << ", " << shape.num_elems << " elements, shifts "
                                      << shape.src_shift << " and " << shape.dst_shift << ", divisor " << divisor;
        }
      }
}

TEST(Reduce, CopiesKeepEveryBit) {
  const HostKernel kernel = find_host_kernel(kGridCopyName);
  ASSERT_NE(kernel, nullptr);
  for (const uint32_t src_shift : {0u, 1u, 4u, 16u})
    for (const uint32_t dst_shift : {0u, 1u, 4u, 20u})
      for (const uint32_t num_dst : {1u, 2u, 3u})
        for (const uint64_t bytes : {0u, 1u, 3u, 15u, 16u, 17u, 31u, 100u, 4099u}) {
          Buffers b(1, bytes + 32, bytes + src_shift);
          ReduceArgs args{};
          args.step.num_src = 1;
          args.step.num_dst = num_dst;
          args.step.num_elems = bytes;
          args.step.own = UINT32_MAX;
          args.src[0] = b.src[0].data() + Buffers::kGuard + src_shift;
          for (uint32_t d = 0; d < num_dst; ++d) {
            args.dst[d] = b.device[d].data() + Buffers::kGuard + dst_shift;
            std::memcpy(b.host[d].data() + Buffers::kGuard + dst_shift, args.src[0], bytes);
          }
          kernel(&args, 2, 2);
          ASSERT_EQ(b.device, b.host) << bytes << " bytes, shifts " << src_shift << " and " << dst_shift;
        }
}

// Every mixed row, the own source at any position, with sends and destination, and sources that are all raw inputs.
TEST(Reduce, MixedRowsGiveTheHostsBits) {
  const KernelTable& host = *kernel_table(SimdLevel::kBaseline);
  uint64_t seed = 1;
  for (uint8_t row = 1; row < kNumRows; ++row)
    for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum})
      for (const Shape& shape : kShapes) {
        if (shape.in_place) continue;
        const TypeRow types = row_at(row, Dtype::kFloat32);
        ++seed;
        const bool has_own = seed % 3 != 0, has_dst = seed % 4 != 0 || shape.num_dst == 1;
        const bool raw = seed % 5 == 0 && op != Op::kPremulSum;
        MixedKernelArgs wanted;
        wanted.op = op == Op::kAvg || op == Op::kPremulSum ? Op::kSum : op;
        wanted.own_type = types.input;
        wanted.wire = types.wire;
        wanted.dst_type = types.output;
        wanted.has_dst = has_dst;
        wanted.result_as_wire = seed % 2 == 0;
        wanted.raw = raw;
        Buffers b(shape.num_src, (shape.num_elems + 4) * 4, seed);
        const void* src[kMaxSources];
        void* dst[kMaxSinks];
        const float scale = -0.77f;
        // Shifts count elements of four bytes, which suits every type.
        set_pointers(shape, 4, 4, b, b.host, src, dst);
        wanted.args.src = src;
        wanted.args.dst = dst;
        wanted.args.num_src = shape.num_src;
        wanted.args.num_dst = shape.num_dst;
        wanted.args.num_elems = shape.num_elems;
        wanted.args.divide_by = op == Op::kAvg ? 3 : 0;
        if (has_own) wanted.args.own = static_cast<uint32_t>(seed / 3 % shape.num_src);
        if (op == Op::kPremulSum && has_own) wanted.args.premul = &scale;
        host.mixed(wanted);
        ReduceArgs args{};
        set_pointers(shape, 4, 4, b, b.device, args.src, args.dst);
        args.step.num_src = shape.num_src;
        args.step.num_dst = shape.num_dst;
        args.step.num_elems = shape.num_elems;
        args.step.divide_by = wanted.args.divide_by;
        args.step.own = wanted.args.own;
        args.step.scale_own = wanted.args.premul != nullptr;
        std::memcpy(args.premul, &scale, 4);
        args.step.own_type = types.input;
        args.step.wire_type = types.wire;
        args.step.dst_type = types.output;
        args.step.has_dst = has_dst;
        args.step.result_as_wire = wanted.result_as_wire;
        args.step.raw = raw;
        const HostKernel kernel = find_host_kernel(reduce_mixed_name(op));
        ASSERT_NE(kernel, nullptr);
        kernel(&args, 1 + seed % 2, 1u << seed % 3);
        ASSERT_EQ(b.device, b.host) << dtype_name(types.input) << " by " << dtype_name(types.wire) << " to "
                                    << dtype_name(types.output) << ", " << op_name(op) << ", " << shape.num_src << " x "
                                    << shape.num_dst << ", " << shape.num_elems << " elements, own " << wanted.args.own
                                    << (raw ? ", raw" : "") << (has_dst ? ", dst" : "");
      }
}

// All names of the name tables exist, and no others.
TEST(Reduce, NamesOfAllKernels) {
  for (int t = 0; t < kNumDtypes; ++t)
    for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin}) {
      const std::string of = std::string(dtype_name(static_cast<Dtype>(t))) + "_" + std::string(op_name(op));
      EXPECT_NE(find_host_kernel("rondo_interpret_" + of), nullptr) << of;
      EXPECT_NE(find_host_kernel("rondo_reduce_" + of), nullptr) << of;
    }
  for (const char* op : {"sum", "prod", "max", "min"})
    EXPECT_NE(find_host_kernel("rondo_interpret_mixed_" + std::string(op)), nullptr);
  EXPECT_NE(find_host_kernel("rondo_interpret_copy"), nullptr);
  EXPECT_EQ(find_host_kernel("rondo_interpret_float_avg"), nullptr);
}

}  // namespace
}  // namespace rondo::testing
