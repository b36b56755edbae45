// Communication partners as in textbooks: neighbours, partners and message sizes, from the recorded schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "algorithms/circulant.h"
#include "algorithms/halving_doubling.h"
#include "algorithms/registry.h"
#include "algorithms/rooted_tree.h"
#include "schedule/checker.h"

namespace rondo {
namespace {

const Algorithm& row(Collective collective, const char* name) {
  const Algorithm* a = find_algorithm(collective, name);
  if (a == nullptr) ADD_FAILURE() << name;
  return *a;
}

/// Chunks that `rank` sends to each peer.
std::map<Rank, int> sent_to(const RankSchedule& s) {
  std::map<Rank, int> chunks;
  for (const Lane& lane : s.lanes)
    for (const Instruction& i : lane)
      if (i.has(kVerbSend) && !i.is(kFlagDirect))
        for (const Port& p : s.send_ports(i)) chunks[p.peer] += i.num_chunks;
  return chunks;
}

int count_received(const RankSchedule& s) {
  int chunks = 0;
  for (const Lane& lane : s.lanes)
    for (const Instruction& i : lane)
      if (i.has(kVerbRecv) && !i.is(kFlagDirect)) chunks += i.num_chunks * static_cast<int>(s.recv_ports(i).size());
  return chunks;
}

TEST(Ring, RootedChainsTalkToNeighboursOnly) {
  for (int n = 2; n <= 9; ++n)
    for (Rank root = 0; root < n; ++root)
      for (Rank r = 0; r < n; ++r) {
        const std::map<Rank, int> next{{(r + 1) % n, 1}};
        const std::map<Rank, int> down = sent_to(record_rank(row(Collective::kBroadcast, "ring"), r, n, root));
        EXPECT_EQ(down, (r + 1) % n == root ? (std::map<Rank, int>{}) : next) << "the chain ends before the root";
        const std::map<Rank, int> up = sent_to(record_rank(row(Collective::kReduce, "ring"), r, n, root));
        EXPECT_EQ(up, r == root ? (std::map<Rank, int>{}) : next) << "the chain ends at the root";
      }
}

TEST(RootedTree, EveryRankHearsOnceFromEachTreeAndTellsTwoAtMost) {
  for (int n = 2; n <= 40; ++n)
    for (Rank root : {0, n / 2, n - 1})
      for (Rank r = 0; r < n; ++r) {
        const RankSchedule down = record_rank(row(Collective::kBroadcast, "tree"), r, n, root);
        const RankSchedule up = record_rank(row(Collective::kReduce, "tree"), r, n, root);
        EXPECT_EQ(count_received(down), r == root ? 0 : 2);
        int told = 0, parents = 0;
        for (const auto& [peer, halves] : sent_to(down)) told += halves;
        for (const auto& [peer, halves] : sent_to(up)) parents += halves;
        EXPECT_LE(told, 2) << "S/2 each: no rank sends more than S";
        EXPECT_EQ(parents, r == root ? 0 : 2);
        EXPECT_EQ(count_received(up), told) << "sums climb where copies came down";
      }
}

TEST(Circulant, SkipsHalveAndChunksAddUp) {
  using algorithms::Circulant;
  EXPECT_EQ(Circulant(0, 5).rounds.size(), 3u);
  for (int n = 1; n <= 200; ++n) {
    int s = n, moved = 0;
    for (const Circulant::Round& round : Circulant(0, n).rounds) {
      EXPECT_EQ(round.s, s);
      EXPECT_EQ(round.t, (s + 1) / 2);
      moved += round.s - round.t;
      s = round.t;
    }
    EXPECT_EQ(s, 1);
    EXPECT_EQ(moved, n - 1);
  }
}

TEST(Circulant, RangesAreOneInstructionARound) {
  const RankSchedule s = record_rank(row(Collective::kReduceScatter, "circulant"), 3, 7);
  std::vector<std::pair<Rank, int>> sends;
  for (const Instruction& i : s.lanes[0])
    if (i.has(kVerbSend)) sends.emplace_back(s.send_ports(i)[0].peer, i.num_chunks);
  EXPECT_EQ(sends, (std::vector<std::pair<Rank, int>>{{0, 3}, {5, 2}, {4, 1}})) << "to r + 4, r + 2, r + 1 of 7";
  EXPECT_EQ(s.lanes[0][0].src_first, 0) << "local chunks 4..6 are 7, 8, 9 modulo 7";
}

TEST(HalvingDoubling, PartnersSwapBlocksOfHalfTheSize) {
  constexpr int kRanks = 8;
  for (Rank r = 0; r < kRanks; ++r) {
    EXPECT_EQ(sent_to(record_rank(row(Collective::kReduceScatter, "halving_doubling"), r, kRanks)),
              (std::map<Rank, int>{{r ^ 4, 4}, {r ^ 2, 2}, {r ^ 1, 1}}));
    EXPECT_EQ(sent_to(record_rank(row(Collective::kAllGather, "halving_doubling"), r, kRanks)),
              (std::map<Rank, int>{{r ^ 1, 1}, {r ^ 2, 2}, {r ^ 4, 4}}));
  }
}

TEST(HalvingDoubling, SeatsCoverAllChunksOnce) {
  using algorithms::HalvingDoubling;
  for (int n = 1; n <= 70; ++n) {
    const HalvingDoubling self(0, n, HalvingDoubling::Cut::kByRank);
    int chunks = 0;
    for (int seat = 0; seat < self.num_seats; ++seat) {
      EXPECT_EQ(self.first_chunk(seat), self.rank_of(seat));
      chunks += self.block(Buffer::kIn, seat, 1).num;
    }
    EXPECT_EQ(chunks, n);
    EXPECT_EQ(self.block(Buffer::kIn, 0, self.num_seats).num, n);
  }
}

TEST(AllToAll, EveryRoundIsAPermutation) {
  for (const char* name : {"pairwise", "one_shot"})
    for (int n = 2; n <= 9; ++n) {
      std::vector<std::set<Rank>> readers(static_cast<size_t>(n));
      for (Rank r = 0; r < n; ++r) {
        const RankSchedule s = record_rank(row(Collective::kAllToAll, name), r, n);
        size_t round = 0;
        for (const Instruction& i : s.lanes[0]) {
          if (!i.has(kVerbSend)) continue;
          EXPECT_EQ(s.send_ports(i)[0].peer, (r + static_cast<int>(++round)) % n);
          EXPECT_EQ(i.src_first, s.send_ports(i)[0].peer);
          EXPECT_TRUE(readers[round].insert(s.send_ports(i)[0].peer).second) << name << ": two senders meet";
        }
        EXPECT_EQ(round, static_cast<size_t>(n) - 1);
      }
    }
}

TEST(Barrier, CarriesCreditsAlone) {
  for (const char* name : {"one_shot", "dissemination"})
    for (int n = 1; n <= 9; ++n)
      for (Rank r = 0; r < n; ++r)
        for (const Lane& lane : record_rank(row(Collective::kBarrier, name), r, n).lanes)
          for (const Instruction& i : lane) EXPECT_TRUE(i.is(kFlagCredit)) << name;
}

TEST(Binomial, BlocksOfAScatterCoverEveryRankOnce) {
  for (int n = 2; n <= 33; ++n)
    for (Rank root : {0, n - 1}) {
      int given = 0;
      for (const auto& [peer, chunks] : sent_to(record_rank(row(Collective::kScatter, "binomial"), root, n, root)))
        given += chunks;
      EXPECT_EQ(given, n - 1);
    }
}

TEST(PointToPoint, IsOneMessageOnATagOfItsOwn) {
  const RankSchedule s = record_point_to_point(Collective::kSend, 3, 5, 1);
  const RankSchedule r = record_point_to_point(Collective::kRecv, 1, 5, 3);
  ASSERT_EQ(s.lanes, (std::vector<Lane>{Lane(1, s.lanes[0][0])}));
  ASSERT_EQ(r.lanes, (std::vector<Lane>{Lane(1, r.lanes[0][0])}));
  EXPECT_EQ(instruction_text(s, s.lanes[0][0]), "send in[0], to {1}");
  EXPECT_EQ(instruction_text(r, r.lanes[0][0]), "recv from {3}, into out[0]");
  EXPECT_EQ(s.send_ports(s.lanes[0][0])[0].tag, kTagPointToPoint);
  EXPECT_EQ(r.recv_ports(r.lanes[0][0])[0].tag, kTagPointToPoint);
}

TEST(PointToPoint, AMatchedMessageFollowsItsEnvelope) {
  const RankSchedule s = record_point_to_point(Collective::kSend, 3, 5, 1, true);
  const RankSchedule r = record_point_to_point(Collective::kRecv, 1, 5, 3, true);
  ASSERT_EQ(s.lanes.size(), 1u);
  ASSERT_EQ(s.lanes[0].size(), 2u);
  EXPECT_TRUE(s.lanes[0][0].is(kFlagCredit));
  EXPECT_EQ(instruction_text(s, s.lanes[0][1]), "send in[0], to {1}");
  for (const Instruction& i : s.lanes[0]) EXPECT_EQ(s.send_ports(i)[0].tag, kTagMatched);
  ASSERT_EQ(r.lanes[0].size(), 1u);
  EXPECT_EQ(r.recv_ports(r.lanes[0][0])[0].tag, kTagMatched);
  EXPECT_TRUE(record_point_to_point(Collective::kRecv, 1, 5, -1, true).lanes[0].empty());
}

TEST(PointToPoint, NoCollectiveUsesItsTags) {
  for (const Algorithm& a : all_algorithms())
    for (Rank r = 0; r < 6; ++r)
      for (const PortSet& set : record_rank(a, r, 6).port_sets)
        for (const Port& port : set) EXPECT_FALSE(is_message_tag(port.tag)) << a.name;
}

}  // namespace
}  // namespace rondo
