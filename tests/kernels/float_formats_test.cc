// The formats of kernels/float_formats.h against the oracle: the scalar conversion decodes every code. (The kernels'
// conversions are tested in reduce_test, mixed_test and exhaustive_test.)
// labels: unit
#include "kernels/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/oracle.h"

namespace rondo {
namespace {

TEST(FloatFormats, EveryCodeDecodes) {
  for (int t = 0; t < kNumDtypes; ++t) {
    const auto dtype = static_cast<Dtype>(t);
    if (!is_narrow_float(dtype)) continue;
    for (uint32_t code = 0; code < (1u << (8 * dtype_bytes(dtype))); ++code) {
      const double expected = oracle::decode(code, oracle::float_spec(dtype));
      const float got = value_of_code(code, dtype);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << dtype_name(dtype) << " " << code;
        EXPECT_NE(std::bit_cast<uint32_t>(got) & 0x00400000u, 0u) << "a signalling NaN";
        continue;
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(static_cast<float>(expected)))
          << dtype_name(dtype) << " " << code;
    }
  }
}

}  // namespace
}  // namespace rondo
