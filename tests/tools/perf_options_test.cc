// Command line values of `rondo perf`: sizes, names, sweeps, how a size becomes a call, bandwidth formulae.
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
  EXPECT_EQ(parse_collective("reduce"), std::nullopt);
}

TEST(ParseNames, DatatypesAndOpsAsListsAndAll) {
  EXPECT_EQ(parse_dtypes("all").value().size(), static_cast<size_t>(kNumDtypes));
  EXPECT_EQ(parse_ops("all").value().size(), static_cast<size_t>(kNumOps));
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

TEST(CallShapes, SizeIsTheWholeVector) {
  const CallShape all = call_shape(Collective::kAllReduce, Dtype::kFloat32, 3, 100);
  EXPECT_EQ(all.count_elems, 25u);
  EXPECT_EQ(all.in_elems, 25u);
  EXPECT_EQ(all.out_elems, 25u);
  EXPECT_EQ(all.bytes, 100u);
  const CallShape scatter = call_shape(Collective::kReduceScatter, Dtype::kFloat32, 3, 100);
  EXPECT_EQ(scatter.count_elems, 8u);
  EXPECT_EQ(scatter.in_elems, 24u);
  EXPECT_EQ(scatter.out_elems, 8u);
  EXPECT_EQ(scatter.bytes, 96u);
  const CallShape gather = call_shape(Collective::kAllGather, Dtype::kInt8, 4, 10);
  EXPECT_EQ(gather.count_elems, 2u);
  EXPECT_EQ(gather.in_elems, 2u);
  EXPECT_EQ(gather.out_elems, 8u);
}

TEST(Bandwidths, FormulaeOfNcclTests) {
  const Bandwidth all = bandwidth(Collective::kAllReduce, 4, 2'000'000'000, 0.5);
  EXPECT_DOUBLE_EQ(all.algorithm, 4.0);
  EXPECT_DOUBLE_EQ(all.bus, 6.0);
  const Bandwidth gather = bandwidth(Collective::kAllGather, 4, 2'000'000'000, 0.5);
  EXPECT_DOUBLE_EQ(gather.bus, 3.0);
  EXPECT_DOUBLE_EQ(bandwidth(Collective::kReduceScatter, 2, 1'000'000'000, 1).bus, 0.5);
  EXPECT_DOUBLE_EQ(bandwidth(Collective::kAllReduce, 1, 1000, 1).bus, 0.0);
  EXPECT_DOUBLE_EQ(bandwidth(Collective::kAllReduce, 2, 1000, 0).algorithm, 0.0);
}

}  // namespace
}  // namespace rondo::tools
