// The data of `rondo perf`: results do not depend on the order in which an op is applied, and wrong ones are counted.
// Orders and roundings use plain C++ arithmetic, or a rounding after every operand.
// labels: unit
// timeout: 240
#include "perf_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "support/shared.h"

namespace rondo::tools {
namespace {

constexpr uint64_t kElems = 400;
constexpr CollectiveTraits kAllReduce = collective_traits(Collective::kAllReduce);

uint64_t element(const std::vector<uint8_t>& bytes, uint64_t e, uint32_t elem_bytes) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + e * elem_bytes, elem_bytes);
  return bits;
}

int64_t as_integer(Dtype dtype, uint64_t bits) {
  switch (dtype) {
    case Dtype::kInt8: return static_cast<int8_t>(bits);
    case Dtype::kInt32: return static_cast<int32_t>(bits);
    default: return static_cast<int64_t>(bits);
  }
}

uint64_t combine_floats(Dtype dtype, Op op, uint64_t a, uint64_t b) {
  const double x = decode_float(dtype, a), y = decode_float(dtype, b);
  if (op == Op::kMin) return x < y ? a : b;
  if (op == Op::kMax) return x > y ? a : b;
  return encode_float(dtype, op == Op::kProd ? x * y : x + y);  // rounds after every operand
}
uint64_t combine_integers(Dtype dtype, Op op, uint64_t a, uint64_t b) {
  const bool is_unsigned = dtype == Dtype::kUint8 || dtype == Dtype::kUint32 || dtype == Dtype::kUint64;
  const bool a_less = is_unsigned ? a < b : as_integer(dtype, a) < as_integer(dtype, b);
  if (op == Op::kMin) return a_less ? a : b;
  if (op == Op::kMax) return a_less ? b : a;
  if (is_bitwise(op)) return op == Op::kBitAnd ? a & b : op == Op::kBitOr ? a | b : a ^ b;
  const uint64_t mask = dtype_bytes(dtype) == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * dtype_bytes(dtype))) - 1;
  return (op == Op::kProd ? a * b : a + b) & mask;
}

/// One element, reduced in the order `order`.
uint64_t reduce_in_order(Dtype dtype, Op op, std::vector<uint64_t> operands, const std::vector<int>& order) {
  if (op == Op::kPremulSum)
    for (size_t r = 1; r < operands.size(); r += 2)
      operands[r] = is_float(dtype) ? encode_float(dtype, 2 * decode_float(dtype, operands[r]))
                                    : combine_integers(dtype, Op::kSum, operands[r], operands[r]);
  uint64_t sum = operands[static_cast<size_t>(order[0])];
  for (size_t i = 1; i < order.size(); ++i) {
    const uint64_t x = operands[static_cast<size_t>(order[i])];
    sum = is_float(dtype) ? combine_floats(dtype, op, sum, x) : combine_integers(dtype, op, sum, x);
  }
  if (op != Op::kAvg) return sum;
  const int n = static_cast<int>(order.size());
  if (dtype == Dtype::kFloat64) return encode_float(dtype, decode_float(dtype, sum) / n);
  if (is_float(dtype)) return encode_float(dtype, static_cast<float>(decode_float(dtype, sum)) / static_cast<float>(n));
  const int64_t quotient = as_integer(dtype, sum) / n;
  return static_cast<uint64_t>(quotient) &
         (dtype_bytes(dtype) == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * dtype_bytes(dtype))) - 1);
}

class AnyOrder : public ::testing::TestWithParam<int> {};

TEST_P(AnyOrder, GivesTheExpectedBits) {
  const int nranks = GetParam();
  std::mt19937 random(7);
  std::vector<int> order(static_cast<size_t>(nranks));
  std::iota(order.begin(), order.end(), 0);
  for (int d = 0; d < kNumDtypes; ++d)
    for (int o = 0; o < kNumOps; ++o) {
      const auto dtype = static_cast<Dtype>(d);
      if (!op_combines(static_cast<Op>(o), dtype)) continue;
      const DataSpec spec{kAllReduce, uniform_row(dtype), static_cast<Op>(o), nranks, 5};
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::string(op_name(spec.op)));
      const uint32_t elem_bytes = dtype_bytes(dtype);
      PerfData data(spec);
      std::vector<std::vector<uint8_t>> inputs(order.size(), std::vector<uint8_t>(kElems * elem_bytes));
      for (int r = 0; r < nranks; ++r) data.fill(r, kElems, inputs[static_cast<size_t>(r)].data());
      for (int trial = 0; trial < 4; ++trial) {
        std::vector<uint8_t> output(kElems * elem_bytes);
        for (uint64_t e = 0; e < kElems; ++e) {
          std::vector<uint64_t> operands;
          for (const auto& input : inputs) operands.push_back(element(input, e, elem_bytes));
          const uint64_t bits = reduce_in_order(dtype, spec.op, operands, order);
          std::memcpy(output.data() + e * elem_bytes, &bits, elem_bytes);
        }
        EXPECT_EQ(data.count_wrong_reduced(0, kElems, output.data()), 0u);
        std::shuffle(order.begin(), order.end(), random);
      }
    }
}
INSTANTIATE_TEST_SUITE_P(Ranks, AnyOrder,
                         ::testing::ValuesIn(rondo::testing::kSanitized ? std::vector{1, 2, 7}
                                                                        : std::vector{1, 2, 3, 4, 7, 8, 17, 64}));

TEST(PerfData, EveryRanksContributionMatters) {
  for (int d = 0; d < kNumDtypes; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    PerfData data({kAllReduce, uniform_row(dtype), Op::kSum, 4, 5});
    std::vector<uint8_t> input(kElems * 8), zeros(kElems * 8);
    for (int r = 0; r < 4; ++r) {
      data.fill(r, kElems, input.data());
      uint64_t nonzero = 0;
      for (uint64_t e = 0; e < kElems; ++e) nonzero += element(input, e, dtype_bytes(dtype)) != 0;
      EXPECT_GT(nonzero, kElems * 9 / 10) << dtype_name(dtype) << " rank " << r;
    }
    EXPECT_GT(data.count_wrong_reduced(0, kElems, zeros.data()), kElems / 3) << dtype_name(dtype);
  }
}

TEST(PerfData, WrongElementsAreCountedAcrossPeriodsAndShiftsAreSeen) {
  const uint64_t elems = 3 * PerfData::kPeriodElems + 5;
  PerfData data({kAllReduce, uniform_row(Dtype::kFloat32), Op::kSum, 1, 9});
  std::vector<float> output(elems);
  data.fill(0, elems, output.data());
  EXPECT_EQ(data.count_wrong_reduced(0, elems, output.data()), 0u);
  EXPECT_EQ(data.count_wrong_reduced(100, elems - 100, output.data() + 100), 0u);
  output[0] += 1;
  output[PerfData::kPeriodElems] += 1;
  output[elems - 1] += 1;
  EXPECT_EQ(data.count_wrong_reduced(0, elems, output.data()), 3u);
  EXPECT_GT(data.count_wrong_reduced(1 << 14, elems - (1 << 14), output.data()), elems / 2) << "another chunk's data";
}

TEST(PerfData, GatheredShardsAreToldApart) {
  constexpr uint64_t kShard = 1000;
  PerfData data({collective_traits(Collective::kAllGather), uniform_row(Dtype::kBfloat16), Op::kSum, 3, 9});
  std::vector<uint16_t> output(3 * kShard);
  for (int r = 0; r < 3; ++r) data.fill(r, kShard, output.data() + static_cast<uint64_t>(r) * kShard);
  const auto count_wrong = [&] {
    uint64_t wrong = 0;
    for (int r = 0; r < 3; ++r)
      wrong += data.count_wrong_delivered(r, 0, kShard, output.data() + static_cast<uint64_t>(r) * kShard);
    return wrong;
  };
  EXPECT_EQ(count_wrong(), 0u);
  EXPECT_EQ(data.count_wrong_delivered(1, 7, kShard - 7, output.data() + kShard + 7), 0u);
  std::swap_ranges(output.begin(), output.begin() + kShard, output.begin() + kShard);
  EXPECT_GT(count_wrong(), 19 * kShard / 10);
}

// ---- mixed types ----

/// The finite value of a type next to x, ties to even: by bisection over the patterns, which ascend with their values.
double nearest(Dtype dtype, double x) {
  if (dtype == Dtype::kFloat32) return static_cast<float>(x);
  uint64_t low = 0, high = uint64_t{1} << (8 * dtype_bytes(dtype) - 1);
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    const double value = decode_float(dtype, middle);
    (std::isfinite(value) && value <= std::fabs(x) ? low : high) = middle;
  }
  const double below = decode_float(dtype, low), above = decode_float(dtype, low + 1);
  const double down = std::fabs(x) - below, up = above - std::fabs(x);
  return std::copysign(down < up || (down == up && low % 2 == 0) ? below : above, x);
}

/// The expected output of a rank by the rule of rondo/types.h, computed from the inputs with doubles.
double mixed_result(const DataSpec& spec, const std::vector<double>& inputs) {
  const TypeRow& t = spec.types;
  double result = 0;
  for (size_t r = 0; r < inputs.size(); ++r) {
    const double own = nearest(t.wire, inputs[r] * (spec.op == Op::kPremulSum && r % 2 == 1 ? 2 : 1));
    if (r == 0) result = own;
    else if (spec.op == Op::kMin) result = std::min(result, own);
    else if (spec.op == Op::kMax) result = std::max(result, own);
    else result = spec.op == Op::kProd ? result * own : result + own;
    EXPECT_EQ(nearest(t.wire, result), result) << "a partial result does not fit the wire type";
  }
  if (spec.op == Op::kAvg) result = static_cast<float>(result) / static_cast<float>(inputs.size());
  const bool one_owner = spec.traits.name == "reduce" || spec.traits.name == "reduce_scatter";
  return nearest(t.output, one_owner ? result : nearest(t.wire, result));
}

constexpr uint64_t kFewElems = rondo::testing::kSanitized ? 3 : 100;  // searching the nearest value takes long

TEST(MixedTypes, ResultsAreRoundedWhereTheRuleSays) {
  for (uint8_t index = 1; index < kNumRows; index += rondo::testing::kSanitized ? 4 : 1)
    for (const Collective c : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce})
      for (int o = 0; o < kNumArithmeticOps; ++o)
        for (int nranks : {2, 5}) {
          const TypeRow t = row_at(index, Dtype::kFloat32);
          if (t == uniform_row(t.input)) continue;
          const DataSpec spec{collective_traits(c), t, static_cast<Op>(o), nranks, 3};
          SCOPED_TRACE(::testing::Message() << spec.traits.name << " " << op_name(spec.op) << " row " << int{index});
          PerfData data(spec);
          std::vector<std::vector<uint8_t>> inputs(static_cast<size_t>(nranks));
          for (int r = 0; r < nranks; ++r) {
            inputs[static_cast<size_t>(r)].resize(kFewElems * dtype_bytes(t.input));
            data.fill(r, kFewElems, inputs[static_cast<size_t>(r)].data());
          }
          std::vector<uint8_t> output(kFewElems * dtype_bytes(t.output));
          for (uint64_t e = 0; e < kFewElems; ++e) {
            std::vector<double> operands;
            for (const auto& input : inputs)
              operands.push_back(decode_float(t.input, element(input, e, dtype_bytes(t.input))));
            const uint64_t bits = encode_float(t.output, mixed_result(spec, operands));
            std::memcpy(output.data() + e * dtype_bytes(t.output), &bits, dtype_bytes(t.output));
          }
          ASSERT_EQ(data.count_wrong_reduced(0, kFewElems, output.data()), 0u);
        }
}

TEST(MixedTypes, DataThatWereNotRoundedOnTheWireAreSeen) {
  const TypeRow t{Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat32};
  PerfData data({collective_traits(Collective::kBroadcast), t, Op::kSum, 2, 3});
  std::vector<float> output(kElems);
  data.fill(1, kElems, output.data());
  EXPECT_GT(data.count_wrong_delivered(1, 0, kElems, output.data()), kElems / 2);
  for (float& x : output) x = static_cast<float>(nearest(t.wire, x));
  EXPECT_EQ(data.count_wrong_delivered(1, 0, kElems, output.data()), 0u);
  for (float& x : output) x = std::nextafter(x, 0.0f);
  EXPECT_EQ(data.count_wrong_delivered(1, 0, kElems, output.data()), kElems);
}

TEST(FloatCodec, RoundTripsEveryFinitePatternAndRoundsTiesToEven) {
  for (Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2})
    for (uint64_t bits = 0; bits < uint64_t{1} << (8 * dtype_bytes(dtype)); ++bits)
      if (std::isfinite(decode_float(dtype, bits))) {
        ASSERT_EQ(encode_float(dtype, decode_float(dtype, bits)), bits) << dtype_name(dtype) << " " << bits;
      }
  EXPECT_EQ(decode_float(Dtype::kFloat16, 0x3c00), 1.0);
  EXPECT_EQ(decode_float(Dtype::kFloat8E4m3, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(decode_float(Dtype::kFloat8E4m3, 0x7f)));
  EXPECT_EQ(decode_float(Dtype::kFloat8E5m2, 0x7b), 57344.0);
  EXPECT_EQ(encode_float(Dtype::kFloat16, 2049), encode_float(Dtype::kFloat16, 2048));
  EXPECT_EQ(encode_float(Dtype::kFloat16, 2051), encode_float(Dtype::kFloat16, 2052));
  EXPECT_EQ(encode_float(Dtype::kFloat32, 1.5), 0x3fc00000u);
  EXPECT_EQ(encode_float(Dtype::kFloat64, -2.0), 0xc000000000000000u);
}

TEST(PerfData, PremulIsOneElementOfTheAccumulator) {
  const PerfData half({kAllReduce, uniform_row(Dtype::kFloat16), Op::kPremulSum, 2, 1});
  EXPECT_EQ(half.premul(0), 0x3f800000u);
  EXPECT_EQ(half.premul(1), 0x40000000u);
  const PerfData integers({kAllReduce, uniform_row(Dtype::kInt32), Op::kPremulSum, 2, 1});
  EXPECT_EQ(integers.premul(1), 2u);
}

}  // namespace
}  // namespace rondo::tools
