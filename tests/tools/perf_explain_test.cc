// The regret of a choice, and the lines of `rondo perf --explain`.
// labels: unit
#include "perf_explain.h"

#include <gtest/gtest.h>

#include <string>

#include "algorithms/registry.h"
#include "perf_candidates.h"

namespace rondo::tools {
namespace {

TEST(Explain, NamesChoiceBestAndRegret) {
  MeasuredPoint p;
  p.bytes = 4096;
  const Algorithm* ring = find_algorithm(Collective::kAllReduce, "ring");
  const Algorithm* one_shot = find_algorithm(Collective::kAllReduce, "one_shot");
  p.candidates.push_back({{ring, Protocol::kSimple, 16384}, {}, {2000, 1900, 2000, 2100, 2000}});
  p.candidates.push_back({{one_shot, Protocol::kInline, 448}, {}, {1600, 1520, 1600, 1680, 1600}});
  EXPECT_EQ(p.best(), 1u);
  EXPECT_DOUBLE_EQ(p.regret(), 0.25);
  const std::string text = explain_text(p);
  EXPECT_NE(text.find("* ring simple 16384"), std::string::npos) << text;
  EXPECT_NE(text.find("one_shot inline"), std::string::npos) << text;
  EXPECT_NE(text.find("best"), std::string::npos) << text;
  EXPECT_NE(text.find("regret 25.0 %"), std::string::npos) << text;
}

TEST(Explain, LuckOfOneOfManyIsNoRegret) {
  MeasuredPoint p;
  p.candidates.push_back({{}, {}, {1000, 1000, 1000, 1000}});
  p.candidates.push_back({{}, {}, {700, 1400, 700, 1400}});  // less in every other burst, more in the rest
  EXPECT_EQ(p.best(), 0u) << "upper median of four";
  EXPECT_DOUBLE_EQ(p.regret(), 0);
}

}  // namespace
}  // namespace rondo::tools
