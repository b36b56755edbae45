// extent(): chunks and loops cover a buffer exactly once, for all counts.
#include "schedule/extent.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rondo {
namespace {

/// Marks every element of all loops and chunks.
void expect_covers_once(uint64_t total, uint64_t chunks, uint64_t loop_elems) {
  SCOPED_TRACE(::testing::Message() << total << " elements, " << chunks << " chunks, " << loop_elems << " a loop");
  std::vector<int> seen(total, 0);
  const uint64_t loops = num_loops(total, chunks, loop_elems);
  for (uint64_t loop = 0; loop < loops; ++loop) {
    uint64_t moved = 0;
    for (uint64_t c = 0; c < chunks; ++c) {
      const Extent e = extent(total, chunks, c, loop, loop_elems);
      ASSERT_LE(e.num_elems, loop_elems);
      ASSERT_LE(e.first_elem + e.num_elems, total);
      for (uint64_t k = 0; k < e.num_elems; ++k) ++seen[e.first_elem + k];
      moved += e.num_elems;
    }
    EXPECT_GT(moved, 0u) << "loop " << loop << " moves nothing";
  }
  for (uint64_t k = 0; k < total; ++k) ASSERT_EQ(seen[k], 1) << "element " << k;
  for (uint64_t c = 0; c < chunks; ++c) EXPECT_EQ(extent(total, chunks, c, loops, loop_elems).num_elems, 0u);
}

TEST(Extent, CoversEveryElementOnceForSmallCounts) {
  for (uint64_t total = 0; total <= 20; ++total)
    for (uint64_t chunks = 1; chunks <= 9; ++chunks)
      for (uint64_t loop_elems = 1; loop_elems <= 6; ++loop_elems) expect_covers_once(total, chunks, loop_elems);
}

TEST(Extent, CoversEveryElementOnceForRandomCounts) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 300; ++round) expect_covers_once(random() % 5000, 1 + random() % 300, 1 + random() % 700);
}

TEST(Extent, ChunksFollowOneAnotherAndDifferByOneAtMost) {
  std::mt19937_64 random(21);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t total = random() >> (random() % 64);
    const uint64_t chunks = 1 + random() % 65535;
    const uint64_t c = random() % chunks;
    const Extent e = extent(total, chunks, c);
    EXPECT_LE(e.num_elems - total / chunks, 1u);
    if (c + 1 < chunks) {
      const Extent next = extent(total, chunks, c + 1);
      ASSERT_EQ(e.first_elem + e.num_elems, next.first_elem);
      ASSERT_GE(e.num_elems, next.num_elems) << "the longer ones come first";
    } else {
      ASSERT_EQ(e.first_elem + e.num_elems, total);
    }
    ASSERT_TRUE(c != 0 || e.first_elem == 0);
  }
}

TEST(Extent, LoopsCutAHugeChunkWithoutOverflow) {
  std::mt19937_64 random(22);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t total = random() >> (random() % 64);
    const uint64_t chunks = 1 + random() % 64;
    const uint64_t c = random() % chunks;
    const uint64_t loop_elems = std::max<uint64_t>(1, random() >> (random() % 64));
    const Extent whole = extent(total, chunks, c);
    const uint64_t loop = random() >> (random() % 64);
    const Extent e = extent(total, chunks, c, loop, loop_elems);
    // The definition, in 128 bits.
    const unsigned __int128 skip = static_cast<unsigned __int128>(loop) * loop_elems;
    const uint64_t begin = skip < whole.num_elems ? static_cast<uint64_t>(skip) : whole.num_elems;
    const uint64_t rest = whole.num_elems - begin;
    ASSERT_EQ(e.first_elem, whole.first_elem + begin)
        << total << " / " << chunks << " chunk " << c << " loop " << loop << " of " << loop_elems;
    ASSERT_EQ(e.num_elems, rest < loop_elems ? rest : loop_elems);
  }
}

TEST(Extent, NumberOfLoopsIsThatOfTheLongestChunk) {
  EXPECT_EQ(num_loops(0, 4, 8), 0u);
  EXPECT_EQ(num_loops(1, 4, 8), 1u);
  EXPECT_EQ(num_loops(32, 4, 8), 1u);
  EXPECT_EQ(num_loops(33, 4, 8), 2u);
  EXPECT_EQ(num_loops(UINT64_MAX, 1, 1), UINT64_MAX);
  EXPECT_EQ(num_loops(UINT64_MAX, 1, UINT64_MAX), 1u);
}

}  // namespace
}  // namespace rondo
