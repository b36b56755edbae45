// The scalar conversions of kernels/float_formats.h against the oracle: every code decoded, every midpoint between two
// neighbours and the fp32 numbers on both sides of it encoded, and a million bit patterns at random.
// labels: unit
#include "kernels/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/oracle.h"

namespace rondo {
namespace {

struct Format {
  const char* name;
  oracle::Spec spec;
  int bits;
  float (*widen)(uint32_t);
  uint32_t (*narrow)(float);
};
const Format kFormats[] = {
    {"fp16", oracle::kFp16, 16, [](uint32_t c) { return fp16_to_float(static_cast<uint16_t>(c)); },
     [](float v) { return uint32_t{float_to_fp16(v)}; }},
    {"bf16", oracle::kBf16, 16, [](uint32_t c) { return bf16_to_float(static_cast<uint16_t>(c)); },
     [](float v) { return uint32_t{float_to_bf16(v)}; }},
    {"e4m3", oracle::kE4m3, 8, [](uint32_t c) { return e4m3_to_float(static_cast<uint8_t>(c)); },
     [](float v) { return uint32_t{float_to_e4m3(v)}; }},
    {"e5m2", oracle::kE5m2, 8, [](uint32_t c) { return e5m2_to_float(static_cast<uint8_t>(c)); },
     [](float v) { return uint32_t{float_to_e5m2(v)}; }},
};

void expect_encoded(const Format& f, float value) {
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(f.widen(f.narrow(value)))) << f.name;
    return;
  }
  EXPECT_EQ(f.narrow(value), oracle::encode(value, f.spec)) << f.name << " of " << value;
}

TEST(FloatFormats, EveryCodeDecodes) {
  for (const Format& f : kFormats) {
    for (uint32_t code = 0; code < (1u << f.bits); ++code) {
      const double expected = oracle::decode(code, f.spec);
      const float got = f.widen(code);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << f.name << " " << code;
        EXPECT_NE(std::bit_cast<uint32_t>(got) & 0x00400000u, 0u) << "a signalling NaN";
        continue;
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(static_cast<float>(expected)))
          << f.name << " " << code;
      EXPECT_EQ(f.narrow(got), code) << f.name << " round trip";
    }
  }
}

TEST(FloatFormats, MidpointsRoundToEven) {
  for (const Format& f : kFormats) {
    for (uint32_t code = 0; code + 1 < (1u << (f.bits - 1)); ++code) {
      const double low = oracle::decode(code, f.spec);
      const double high = oracle::decode(code + 1, f.spec);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = static_cast<float>((low + high) / 2);
      for (float v : {middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, INFINITY)}) {
        expect_encoded(f, v);
        expect_encoded(f, -v);
      }
    }
  }
}

TEST(FloatFormats, RandomNumbersRoundToNearest) {
  std::mt19937 bits(11);
  for (int i = 0; i < 1000000; ++i) {
    const float v = std::bit_cast<float>(static_cast<uint32_t>(bits()));
    const float tame = std::ldexp(static_cast<float>(bits() & 0xffffff), static_cast<int>(bits() % 64) - 60);
    const Format& f = kFormats[i % 4];
    expect_encoded(f, v);
    expect_encoded(f, tame);
  }
}

TEST(FloatFormats, UpperEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_fp16(kInf), 0x7c00);
  EXPECT_EQ(float_to_fp16(-65520.0f), 0xfc00);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(float_to_e5m2(-kInf), 0xfc);
  EXPECT_EQ(float_to_e5m2(61440.0f), 0x7c) << "half a step above the largest number: infinity";
  EXPECT_EQ(float_to_e4m3(kInf), 0x7e) << "no infinity: saturates";
  EXPECT_EQ(float_to_e4m3(-1e30f), 0xfe);
}

TEST(FloatFormats, NansStayAndBecomeQuiet) {
  const float signalling = std::bit_cast<float>(0xff812345u);
  EXPECT_EQ(float_to_fp16(signalling), 0xfe00 | (0x012345 >> 13));
  EXPECT_EQ(float_to_bf16(signalling), 0xffc1);
  EXPECT_EQ(float_to_e4m3(signalling), 0x7f);
  EXPECT_EQ(float_to_e5m2(signalling), 0x7f);
}

}  // namespace
}  // namespace rondo
