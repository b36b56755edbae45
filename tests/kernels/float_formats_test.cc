// The scalar decoding of kernels/float_formats.h against the oracle, for every code.
// labels: unit
#include "kernels/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/oracle.h"

namespace rondo {
namespace {

struct Format {
  const char* name;
  FloatFormat format;
  oracle::Spec spec;
  int bits;
};
const Format kFormats[] = {{"fp16", kFormatFp16, oracle::kFp16, 16},
                           {"bf16", kFormatBf16, oracle::kBf16, 16},
                           {"e4m3", kFormatE4m3, oracle::kE4m3, 8},
                           {"e5m2", kFormatE5m2, oracle::kE5m2, 8}};

TEST(FloatFormats, EveryCodeDecodes) {
  for (const Format& f : kFormats)
    for (uint32_t code = 0; code < (1u << f.bits); ++code) {
      const double expected = oracle::decode(code, f.spec);
      const uint32_t got = std::bit_cast<uint32_t>(value_of_code(code, f.format));
      if (std::isnan(expected)) {
        EXPECT_GT(got & 0x7fffffffu, 0x7f800000u) << f.name << " " << code;
        EXPECT_NE(got & 0x00400000u, 0u) << "a signalling NaN";
      } else {
        EXPECT_EQ(got, std::bit_cast<uint32_t>(static_cast<float>(expected))) << f.name << " " << code;
      }
    }
}

}  // namespace
}  // namespace rondo
