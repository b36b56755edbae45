// Tests the oracle and its data: known encodings, round trips, and exactness in any order.
// timeout: 60
#include "support/exact_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

namespace rondo::testing {
namespace {

uint64_t encoded(Dtype t, double x) {
  uint64_t bits = 0;
  encode_float(t, x, &bits);
  return bits;
}

TEST(EncodeFloat, KnownValues) {
  EXPECT_EQ(encoded(Dtype::kFloat16, 1.0), 0x3c00u);
  EXPECT_EQ(encoded(Dtype::kFloat16, -65504.0), 0xfbffu);
  EXPECT_EQ(encoded(Dtype::kFloat16, 0x1p-24), 0x0001u);
  EXPECT_EQ(encoded(Dtype::kFloat16, INFINITY), 0x7c00u);
  EXPECT_EQ(encoded(Dtype::kBfloat16, 1.0), 0x3f80u);
  EXPECT_EQ(encoded(Dtype::kBfloat16, -0.0), 0x8000u);
  EXPECT_EQ(encoded(Dtype::kFloat8E4m3, 448.0), 0x7eu);
  EXPECT_EQ(encoded(Dtype::kFloat8E4m3, 0x1p-9), 0x01u);
  EXPECT_EQ(encoded(Dtype::kFloat8E4m3, NAN), 0x7fu);
  EXPECT_EQ(encoded(Dtype::kFloat8E5m2, 57344.0), 0x7bu);
  EXPECT_EQ(encoded(Dtype::kFloat8E5m2, -1.5), 0xbeu);
  EXPECT_EQ(encoded(Dtype::kFloat32, 1.0), 0x3f800000u);
  EXPECT_EQ(encoded(Dtype::kFloat64, 1.0), 0x3ff0000000000000u);
}

TEST(EncodeFloat, TiesGoToEven) {
  EXPECT_EQ(encoded(Dtype::kBfloat16, 1.0 + 0x1p-8), 0x3f80u);
  EXPECT_EQ(encoded(Dtype::kBfloat16, 1.0 + 3 * 0x1p-8), 0x3f82u);
  EXPECT_EQ(encoded(Dtype::kBfloat16, 1.0 + 0x1p-8 + 0x1p-20), 0x3f81u);
  EXPECT_EQ(encoded(Dtype::kFloat8E4m3, 17.0), encoded(Dtype::kFloat8E4m3, 16.0));
  EXPECT_EQ(encoded(Dtype::kFloat8E4m3, 19.0), encoded(Dtype::kFloat8E4m3, 20.0));
}

TEST(EncodeFloat, InvertsDecodeForAllSmallFloats) {
  for (const Dtype t : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2}) {
    for (uint64_t bits = 0; bits < uint64_t{1} << (8 * dtype_bytes(t)); ++bits) {
      const double x = decode_float(t, &bits);
      if (std::isnan(x)) continue;
      ASSERT_EQ(encoded(t, x), bits) << dtype_name(t);
    }
  }
}

TEST(EncodeFloat, AgreesWithTheProcessorForFp32) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const uint64_t bits = random();
    const double x = decode_float(Dtype::kFloat64, &bits);
    if (!(std::fabs(x) < 3e38)) continue;
    const auto y = static_cast<float>(x);
    uint32_t expected;
    std::memcpy(&expected, &y, sizeof(expected));
    ASSERT_EQ(encoded(Dtype::kFloat32, x), expected);
  }
}

// One step of a reduction: combines two partial results and stores them in the dtype.
uint64_t step(const DataSpec& spec, uint64_t a, uint64_t b) {
  uint64_t bits = 0;
  const auto combine = [&](auto x, auto y) {
    return spec.op == Op::kProd  ? x * y
           : spec.op == Op::kMin ? std::min(x, y)
           : spec.op == Op::kMax ? std::max(x, y)
                                 : x + y;
  };
  if (is_float(spec.dtype)) {
    encode_float(spec.dtype, combine(decode_float(spec.dtype, &a), decode_float(spec.dtype, &b)), &bits);
  } else {
    bits = combine(a, b);
  }
  return bits;
}

class ExactData : public ::testing::TestWithParam<Dtype> {};

// Adding in a random order, through partial results in the dtype, gives the oracle's bits.
TEST_P(ExactData, AnyOrderGivesTheSameBits) {
  std::mt19937 random(3);
  const Dtype dtype = GetParam();
  const bool integer = !is_float(dtype);
  for (const Op op : {Op::kSum, Op::kProd}) {
    for (const int nranks : {1, 2, 3, 7, 8, 9, 16, 33}) {
      const DataSpec spec{dtype, op, nranks, 5};
      for (uint64_t e = 0; e < 300; ++e) {
        std::vector<uint64_t> parts(static_cast<size_t>(nranks));
        for (Rank r = 0; r < nranks; ++r) fill_exact(spec, r, e, 1, &parts[static_cast<size_t>(r)]);
        while (parts.size() > 1) {  // combine any two
          std::shuffle(parts.begin(), parts.end(), random);
          const uint64_t last = parts.back();
          parts.pop_back();
          parts.back() = step(spec, parts.back(), last);
        }
        uint64_t expected = 0;
        expect_exact(spec, e, 1, &expected);
        const uint64_t mask = ~uint64_t{0} >> (64 - 8 * dtype_bytes(dtype));
        ASSERT_EQ(parts[0] & mask, expected)
            << op_name(op) << " of " << nranks << " ranks, element " << e << (integer ? " (integer)" : "");
      }
    }
  }
}

TEST_P(ExactData, EveryRankMattersSomewhere) {
  for (const int nranks : {2, 5, 16}) {
    for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum}) {
      const DataSpec spec{GetParam(), op, nranks, 5};
      for (Rank r = 0; r < nranks; ++r) {
        std::vector<uint8_t> mine(64 * 8), other(64 * 8);
        fill_exact(spec, r, 0, 64, mine.data());
        fill_exact(spec, (r + 1) % nranks, 0, 64, other.data());
        EXPECT_NE(mine, other) << op_name(op) << " rank " << r << " of " << nranks;
      }
    }
  }
}

TEST_P(ExactData, PositionsDoNotDependOnWhereAFillStarts) {
  const DataSpec spec{GetParam(), Op::kSum, 3, 9};
  const uint64_t n = 3 * kPeriodElems, bytes = dtype_bytes(spec.dtype);
  std::vector<uint8_t> whole(n * bytes), parts(n * bytes);
  fill_exact(spec, 1, 0, n, whole.data());
  for (uint64_t first = 0; first < n; first += 1000)
    fill_exact(spec, 1, first, std::min<uint64_t>(1000, n - first), parts.data() + first * bytes);
  EXPECT_EQ(whole, parts);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactData,
                         ::testing::Values(Dtype::kInt8, Dtype::kUint8, Dtype::kInt32, Dtype::kUint32, Dtype::kInt64,
                                           Dtype::kUint64, Dtype::kFloat16, Dtype::kFloat32, Dtype::kFloat64,
                                           Dtype::kBfloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(ExpectExact, SmallSumsByHand) {
  const DataSpec spec{Dtype::kInt8, Op::kAvg, 3, 5};
  int8_t parts[3], expected;
  for (uint64_t e = 0; e < 100; ++e) {
    for (Rank r = 0; r < 3; ++r) fill_exact(spec, r, e, 1, &parts[r]);
    expect_exact(spec, e, 1, &expected);
    const auto wrapped = static_cast<int8_t>(parts[0] + parts[1] + parts[2]);
    ASSERT_EQ(expected, wrapped / 3);
  }
}

TEST(RoundingData, OrderMatters) {
  for (const Dtype t : {Dtype::kFloat16, Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    int num_different = 0;
    for (uint64_t e = 0; e < 200; ++e) {
      double x[4];
      for (Rank r = 0; r < 4; ++r) {
        uint64_t bits = 0;
        fill_rounding(t, 1, r, e, 1, &bits);
        x[r] = decode_float(t, &bits);
      }
      const auto add = [&](double a, double b) {
        const uint64_t bits = encoded(t, a + b);
        return decode_float(t, &bits);
      };
      num_different += add(add(add(x[0], x[1]), x[2]), x[3]) != add(x[0], add(x[1], add(x[2], x[3])));
    }
    EXPECT_GT(num_different, 20) << dtype_name(t);
  }
}

}  // namespace
}  // namespace rondo::testing
