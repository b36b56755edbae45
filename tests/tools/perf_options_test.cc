// Command line values of `rondo perf`: sizes, names, sweeps, types.
// labels: unit
#include "perf_options.h"

#include <gtest/gtest.h>

namespace rondo::tools {
namespace {

using Sizes = std::vector<uint64_t>;

TEST(ParseBytes, NumbersAndUnits) {
  EXPECT_EQ(parse_bytes("0").value(), 0u);
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("1K").value(), 1024u);
  EXPECT_EQ(parse_bytes("32m").value(), 32u << 20);
  EXPECT_EQ(parse_bytes("1.5M").value(), 3u << 19);
  EXPECT_EQ(parse_bytes("2GiB").value(), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("2GB").value(), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1T").value(), uint64_t{1} << 40);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "K", "-1", "3x", "1KK", "1 K", "nan", "inf", "1e300", "0.3", "1.0001K", "0x10", "8Bi"})
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  EXPECT_NE(std::string(parse_bytes("3x").status().message()).find("'3x'"), std::string::npos);
}

TEST(ParseNames, CollectivesInAllSpellings) {
  EXPECT_EQ(parse_collective("all_reduce"), Collective::kAllReduce);
  EXPECT_EQ(parse_collective("all-reduce"), Collective::kAllReduce);
  EXPECT_EQ(parse_collective("AllGather"), Collective::kAllGather);
  EXPECT_EQ(parse_collective("reduce-scatter"), Collective::kReduceScatter);
  EXPECT_EQ(parse_collective("reduce"), Collective::kReduce);
  EXPECT_EQ(parse_collective("educe"), std::nullopt);
}

TEST(ParseNames, DatatypesAndOpsAsListsAndAll) {
  EXPECT_EQ(parse_dtypes("all").value().size(), static_cast<size_t>(kNumDtypes));
  EXPECT_EQ(parse_ops("all").value().size(), static_cast<size_t>(kNumArithmeticOps));
  EXPECT_EQ(parse_dtypes("float,fp16,bf16,f8e4m3").value(),
            (std::vector<Dtype>{Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat8E4m3}));
  EXPECT_EQ(parse_ops("sum,mulsum").value(), (std::vector<Op>{Op::kSum, Op::kPremulSum}));
  EXPECT_FALSE(parse_dtypes("float,").ok());
  EXPECT_FALSE(parse_dtypes("").ok());
  EXPECT_FALSE(parse_ops("sum,median").ok());
}

TEST(Sweep, ByFactorByStepAndSingle) {
  PerfOptions o;
  o.min_bytes = 8;
  o.max_bytes = 100;
  o.step_factor = 2;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{8, 16, 32, 64}));
  o.step_factor = 1;
  o.step_bytes = 40;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{8, 48, 88}));
  o.max_bytes = 8;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{8}));
  o.max_bytes = 7;
  EXPECT_FALSE(sweep_bytes(o).ok());
}

TEST(Sweep, ZeroAndTheEndOfTheNumbersDoNotLoop) {
  PerfOptions o;
  o.min_bytes = 0;
  o.max_bytes = 4;
  o.step_factor = 2;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{0, 1, 2, 4}));
  o.step_factor = 1;
  o.step_bytes = 0;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{0}));
  o.min_bytes = uint64_t{1} << 62;
  o.max_bytes = UINT64_MAX;
  o.step_factor = 8;
  EXPECT_EQ(sweep_bytes(o).value(), (Sizes{uint64_t{1} << 62}));
  o.min_bytes = 1;
  o.step_factor = 1;
  o.step_bytes = 1;
  EXPECT_FALSE(sweep_bytes(o).ok()) << "more sizes than anybody wants";
}

TEST(Types, FollowTheDatatypeUnlessNamed) {
  PerfOptions o;
  EXPECT_EQ(types_of(o, Dtype::kBfloat16), uniform_row(Dtype::kBfloat16));
  o.wire = Dtype::kFloat8E4m3;
  o.output = Dtype::kFloat32;
  EXPECT_EQ(types_of(o, Dtype::kFloat16),
            (TypeRow{Dtype::kFloat16, Dtype::kFloat8E4m3, Dtype::kFloat32, Dtype::kFloat32}));
}

}  // namespace
}  // namespace rondo::tools
