// Every pair of fp8 codes through every op, and every fp16 and bf16 code scaled by awkward numbers, at every SIMD level
// against the scalar oracle: all roundings, overflows, subnormals, signed zeros and NaNs of the narrow formats.
// labels: unit
// timeout: 120
#include <gtest/gtest.h>

#include <string>

#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/oracle.h"

namespace rondo {
namespace {

template <Dtype kDtype>
using StoreOf = typename oracle::Element<kDtype>::Store;
template <Dtype kDtype>
using Arrays = std::vector<std::vector<StoreOf<kDtype>>>;

template <Dtype kDtype>
void expect_equal(const Arrays<kDtype>& sources, const oracle::Call& call) {
  using Store = StoreOf<kDtype>;
  const uint64_t num_elems = sources[0].size();
  std::vector<Store> expected(num_elems);
  std::vector<Store> x(sources.size());
  for (uint64_t i = 0; i < num_elems; ++i) {
    for (size_t s = 0; s < sources.size(); ++s) x[s] = sources[s][i];
    expected[i] = oracle::reduce<kDtype>(x, call);
  }
  std::vector<const void*> src;
  for (const auto& source : sources) src.push_back(source.data());
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;  // reduce_test prints the levels that this machine tests
    std::vector<Store> got(num_elems);
    void* dst = got.data();
    KernelArgs args;
    args.src = src.data();
    args.dst = &dst;
    args.num_src = static_cast<uint32_t>(sources.size());
    args.num_dst = 1;
    args.num_elems = num_elems;
    args.own = call.own;
    args.premul = call.premul;
    args.divide_by = call.divide_by;
    table->reduce[static_cast<int>(kDtype)][static_cast<int>(call.op)](args);
    for (uint64_t i = 0; i < num_elems; ++i) {
      ASSERT_EQ(got[i], expected[i]) << table->level << " " << dtype_name(kDtype) << " " << op_name(call.op)
                                     << " of code " << +sources[0][i] << " (first source)";
    }
  }
}

template <Dtype kDtype>
void check_all_pairs() {
  Arrays<kDtype> pairs(2);
  for (uint32_t i = 0; i < 65536; ++i) {
    pairs[0].push_back(static_cast<uint8_t>(i));
    pairs[1].push_back(static_cast<uint8_t>(i >> 8));
  }
  for (Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin}) {
    ASSERT_NO_FATAL_FAILURE(expect_equal<kDtype>(pairs, {.op = op}));
  }
  ASSERT_NO_FATAL_FAILURE(expect_equal<kDtype>(pairs, {.op = Op::kAvg, .divide_by = 3}));
  ASSERT_NO_FATAL_FAILURE(expect_equal<kDtype>(pairs, {.op = Op::kAvg, .divide_by = 16}));
}

template <Dtype kDtype>
void check_all_codes_scaled() {
  Arrays<kDtype> codes(1);
  for (uint32_t i = 0; i < 65536; ++i) codes[0].push_back(static_cast<StoreOf<kDtype>>(i));
  for (float scale : {1.0f, -1.0f, 1.0009765f, 0.3f, 3.0f, 0x1p-12f,
                      0x1.8p-13f, 0x1.00002p-10f, 0x1p+9f, 1e-30f, 1e30f}) {
    ASSERT_NO_FATAL_FAILURE(expect_equal<kDtype>(codes, {.op = Op::kPremulSum, .own = 0, .premul = &scale}));
  }
}

template <Dtype kDtype>
void check_if_narrow() {
  if constexpr (is_narrow_float(kDtype)) {
    if constexpr (dtype_bytes(kDtype) == 1) check_all_pairs<kDtype>();
    check_all_codes_scaled<kDtype>();
  }
}

TEST(Exhaustive, NarrowFloats) {
#define RONDO_X(e, ...) check_if_narrow<Dtype::e>();
  RONDO_DTYPES(RONDO_X)
#undef RONDO_X
}

}  // namespace
}  // namespace rondo
