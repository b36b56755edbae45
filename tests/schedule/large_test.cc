// labels: slow
// timeout: 120
// Thousands of ranks by fingerprints: 33 million instructions, exactly one contribution from each of 4096 ranks.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>

#include "algorithms/registry.h"
#include "schedule/checker.h"

namespace rondo {
namespace {

TEST(Large, RingOf4096Ranks) {
  const std::clock_t start = std::clock();
  const CheckReport report =
      check_algorithm(*find_algorithm(Collective::kAllReduce, "ring"), 4096, CheckOptions::fingerprints());
  EXPECT_TRUE(report.ok) << report.reason;
  EXPECT_EQ(report.steps, 2 * 4095);
  EXPECT_EQ(report.instructions, 4096 * (1 + 4095 + 4095));
  std::printf("%.1f s of processor time\n", static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
}

TEST(Large, ABugAmongThousandsIsFound) {
  Schedule s = record_all(*find_algorithm(Collective::kAllReduce, "ring"), 1024);
  Instruction& i = s.ranks[700].lanes[1][500];
  i.src_first = static_cast<uint16_t>((i.src_first + 1) % 1024);
  const CheckReport report = check_schedule(s, CheckOptions::fingerprints());
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.rank, 700);
  EXPECT_EQ(report.lane, 1);
  EXPECT_EQ(report.pc, 500);
}

}  // namespace
}  // namespace rondo
