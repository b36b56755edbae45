// Every dtype x op x SIMD level against the scalar oracle: 1..9 sources (and 65), 1..4 sinks, ragged sizes, misaligned
// buffers, in place. Bytes around every sink must stay as they were.
// labels: unit
// timeout: 300
#include <gtest/gtest.h>

#include <string>

#include "kernels/guarded_buffer.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/oracle.h"
#include "support/shared.h"

namespace rondo {
namespace {

constexpr uint64_t kMaxElems = testing::kSanitized ? 345 : 600;
std::vector<uint64_t> ragged_sizes() {
  if (testing::kSanitized) return {0, 1, 5, 37, 64, 345};
  std::vector<uint64_t> sizes;
  for (uint64_t n = 0; n <= 70; ++n) sizes.push_back(n);
  for (uint64_t n : {95, 96, 97, 127, 128, 129, 191, 255, 256, 257, 319, 511, 513, 600}) sizes.push_back(n);
  return sizes;
}

// Shape of a call: its sources and its kind of writes.
struct Shape {
  uint32_t num_src;
  uint32_t num_dst;
  bool in_place;
  bool same_alignment;
};

template <Dtype kDtype>
class Case {
 public:
  using Store = typename oracle::Element<kDtype>::Store;

  Case(const oracle::Call& call, uint32_t num_src) : call_(call), num_src_(num_src) {
    for (uint32_t s = 0; s < num_src; ++s) sources_.push_back(oracle::random_elements<kDtype>(kMaxElems, 977 * s + 5));
    expected_.resize(kMaxElems);
    std::vector<Store> x(num_src);
    for (uint64_t i = 0; i < kMaxElems; ++i) {
      for (uint32_t s = 0; s < num_src; ++s) x[s] = sources_[s][i];
      expected_[i] = oracle::reduce<kDtype>(x, call);
    }
    buffers_.assign(num_src + 4, GuardedBuffer(kMaxElems * sizeof(Store)));
  }

  void check(const KernelTable& table, const Shape& shape, uint64_t num_elems) {
    const uint64_t num_bytes = num_elems * sizeof(Store);
    std::vector<const void*> src;
    std::vector<void*> dst;
    for (uint32_t b = 0; b < num_src_ + 4; ++b) {
      const uint64_t step = shape.same_alignment ? 3 : 7 * b + num_elems;
      buffers_[b].place(step * sizeof(Store) % 64, num_bytes);
    }
    for (uint32_t s = 0; s < num_src_; ++s) {
      if (num_bytes != 0) std::memcpy(buffers_[s].data(), sources_[s].data(), num_bytes);
      src.push_back(buffers_[s].data());
    }
    for (uint32_t d = 0; d < shape.num_dst; ++d) {
      const bool own = shape.in_place && d == 0;
      dst.push_back(own ? buffers_[num_src_ - 1].data() : buffers_[num_src_ + d].data());
    }
    KernelArgs args;
    args.src = src.data();
    args.dst = dst.data();
    args.num_src = num_src_;
    args.num_dst = shape.num_dst;
    args.num_elems = num_elems;
    args.own = call_.own;
    args.premul = call_.premul;
    args.divide_by = call_.divide_by;
    table.reduce[static_cast<int>(kDtype)][static_cast<int>(call_.op)](args);
    for (uint32_t d = 0; d < shape.num_dst; ++d) expect_result(table, shape, num_elems, d, dst[d]);
    for (const GuardedBuffer& buffer : buffers_)
      ASSERT_TRUE(buffer.guards_intact()) << describe(table, shape, num_elems);
  }

 private:
  void expect_result(const KernelTable& table, const Shape& shape, uint64_t num_elems, uint32_t d, const void* got) {
    const uint64_t num_bytes = num_elems * sizeof(Store);
    if (num_bytes == 0 || std::memcmp(got, expected_.data(), num_bytes) == 0) return;
    for (uint64_t i = 0; i < num_elems; ++i) {
      const auto* bytes = static_cast<const uint8_t*>(got) + i * sizeof(Store);
      if (std::memcmp(bytes, &expected_[i], sizeof(Store)) == 0) continue;
      std::string values;
      for (uint32_t s = 0; s < num_src_; ++s) values.append(" ").append(hex(&sources_[s][i]));
      FAIL() << describe(table, shape, num_elems) << " sink " << d << " element " << i << ": got " << hex(bytes)
             << " expected " << hex(&expected_[i]) << " from" << values;
    }
  }
  static std::string hex(const void* p) {
    uint64_t bits = 0;
    std::memcpy(&bits, p, sizeof(Store));
    char text[20];
    snprintf(text, sizeof(text), "%llx", static_cast<unsigned long long>(bits));
    return text;
  }
  std::string describe(const KernelTable& table, const Shape& shape, uint64_t num_elems) const {
    return std::string(table.level) + " " + std::string(dtype_name(kDtype)) + " " + std::string(op_name(call_.op)) +
           " sources " + std::to_string(num_src_) + " sinks " + std::to_string(shape.num_dst) + " elements " +
           std::to_string(num_elems) + " divide_by " + std::to_string(call_.divide_by) +
           (shape.in_place ? " in place" : "");
  }

  oracle::Call call_;
  uint32_t num_src_;
  std::vector<std::vector<Store>> sources_;
  std::vector<Store> expected_;
  std::vector<GuardedBuffer> buffers_;
};

template <Dtype kDtype>
void check_call(const oracle::Call& call, uint32_t num_src) {
  Case<kDtype> c(call, num_src);
  const std::vector<uint64_t> sizes = ragged_sizes();
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;  // PrintsLevels prints the levels that this machine tests
    for (uint64_t n : sizes) {
      const uint32_t num_dst = 1 + static_cast<uint32_t>((n + num_src) % 4);
      c.check(*table, {num_src, num_dst, n % 3 == 0, n % 2 == 0}, n);
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (uint32_t num_dst = 1; num_dst <= 4; ++num_dst) {
      for (int flags = 0; flags < 4; ++flags) {
        for (uint64_t n : testing::kSanitized ? std::vector<uint64_t>{37} : std::vector<uint64_t>{3, 37, 259, 577}) {
          c.check(*table, {num_src, num_dst, (flags & 1) != 0, (flags & 2) != 0}, n);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

template <Dtype kDtype>
void check_dtype(Op op) {
  using Acc = typename oracle::Element<kDtype>::Acc;
  const Acc scale = static_cast<Acc>(std::is_floating_point_v<Acc> ? 0.3 : 3);
  const std::vector<uint32_t> few{1, 2, 9}, all{1, 2, 3, 4, 5, 6, 7, 8, 9, 65};
  for (uint32_t num_src : testing::kSanitized ? few : all) {
    oracle::Call call{.op = op};
    ASSERT_NO_FATAL_FAILURE(check_call<kDtype>(call, num_src));
    if (op == Op::kAvg) {
      for (uint32_t divide_by : {1u, 2u, 3u, 7u, 64u, 128u, 200u, 256u, 1000u, 0x80000000u, 0xfffffffbu}) {
        if (divide_by > 7 && num_src != 2 && num_src != 9) continue;
        call.divide_by = divide_by;
        ASSERT_NO_FATAL_FAILURE(check_call<kDtype>(call, num_src));
      }
    }
    if (op == Op::kPremulSum) {
      call.premul = &scale;
      for (uint32_t own : {0u, num_src / 2, num_src - 1}) {
        call.own = own;
        ASSERT_NO_FATAL_FAILURE(check_call<kDtype>(call, num_src));
      }
    }
  }
}

class ReduceKernels : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ReduceKernels, EqualTheOracleBitForBit) {
  const Op op = static_cast<Op>(std::get<1>(GetParam()));
  const Dtype dtype = static_cast<Dtype>(std::get<0>(GetParam()));
  if (!op_combines(op, dtype)) {
    for (const SimdLevel level : kLevels)
      if (const KernelTable* table = kernel_table(level); table != nullptr)
        EXPECT_EQ(table->reduce[static_cast<int>(dtype)][static_cast<int>(op)], nullptr);
    return;
  }
  switch (dtype) {
#define RONDO_X(e, ...) \
  case Dtype::e: return check_dtype<Dtype::e>(op);
    RONDO_DTYPES(RONDO_X)
#undef RONDO_X
  }
  FAIL() << "a dtype without a row";
}

INSTANTIATE_TEST_SUITE_P(All, ReduceKernels,
                         ::testing::Combine(::testing::Range(0, kNumDtypes), ::testing::Range(0, kNumOps)),
                         [](const auto& info) {
                           return std::string(dtype_name(static_cast<Dtype>(std::get<0>(info.param)))) + "_" +
                                  std::string(op_name(static_cast<Op>(std::get<1>(info.param))));
                         });

TEST(KernelTables, PrintsLevels) {
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;
    printf("tested level: %.*s\n", static_cast<int>(table->level.size()), table->level.data());
    EXPECT_EQ(simd_level_from_name(table->level), level);
  }
  ASSERT_NE(kernel_table(SimdLevel::kBaseline), nullptr);
  ASSERT_NE(kernel_table(best_simd_level()), nullptr);
  EXPECT_FALSE(simd_level_from_name("mmx").has_value());
}

TEST(KernelTables, ReduceNothing) {
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;
    const void* src[2] = {nullptr, nullptr};
    void* dst[2] = {nullptr, nullptr};
    KernelArgs args;
    args.src = src;
    args.dst = dst;
    args.num_src = 2;
    args.num_dst = 2;
    for (const auto& row : table->reduce)
      for (Kernel kernel : row)
        if (kernel != nullptr) kernel(args);
    args.num_src = 1;
    table->copy(args);
  }
}

}  // namespace
}  // namespace rondo
