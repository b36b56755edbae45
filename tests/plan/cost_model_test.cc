// The planner's profiles and forecasts: profiles against hand-made counts, forecasts that grow where they must.
//
// labels: unit
#include "plan/cost_model.h"
#include "plan/cost_corrections.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rondo {
namespace {

const Algorithm& named(Collective c, std::string_view name) {
  const Algorithm* a = find_algorithm(c, name);
  EXPECT_NE(a, nullptr) << name;
  return *a;
}

ScheduleProfile profile(Collective c, std::string_view name, int nranks, int ranks_per_core = 1) {
  return profile_schedule(named(c, name), nranks, 0, ranks_per_core);
}

TEST(ScheduleProfile, RingAllReduceByHand) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "ring", 4);
  // 1 send, 3 receive-and-add, 3 receives: 7 messages; each rank sends and receives 6 quarters.
  EXPECT_DOUBLE_EQ(p.busiest.steps, 7);
  EXPECT_DOUBLE_EQ(p.busiest.ends, 12);
  EXPECT_DOUBLE_EQ(p.busiest.ring_share, 12 / 4.0);
  EXPECT_DOUBLE_EQ(p.busiest.user_share, (1 + 3 + 1 + 3) / 4.0);  // reads each own chunk once, writes each result once
  EXPECT_DOUBLE_EQ(p.longest_chunk, 0.25);
  EXPECT_DOUBLE_EQ(p.rounds, 6);
  EXPECT_EQ(p.busiest, p.others);  // all ranks have the same profile
}

TEST(ScheduleProfile, OneShotWritesOnceAndReadsAll) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "one_shot", 8);
  EXPECT_DOUBLE_EQ(p.busiest.steps, 2);
  EXPECT_DOUBLE_EQ(p.busiest.ring_share, 1 + 7);
  EXPECT_DOUBLE_EQ(p.rounds, 1);
}

TEST(ScheduleProfile, PullsAreReadsOfPeersAndFreshWhereTheyWereJustWritten) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "pull", 4);
  EXPECT_DOUBLE_EQ(p.busiest.pulls, 6);  // three contributions to the own quarter, three sums
  EXPECT_DOUBLE_EQ(p.busiest.peer_share, 6 / 4.0);
  EXPECT_DOUBLE_EQ(p.busiest.fresh_share, 3 / 4.0);
  EXPECT_DOUBLE_EQ(p.busiest.ring_share, 0);
  EXPECT_GT(p.busiest.credits, 0);
  EXPECT_GE(p.rounds, 2);
}

// An all-reduce in place has written its input, so the next one reads fresh data twice. A reduce-scatter has not.
TEST(CostModel, PullsOfAnAllReduceAreFresh) {
  const auto pulled = [](Collective c, double bytes) {
    const ScheduleProfile p = profile(c, "pull", 2);
    const CostVector n =
        cost_counts({&p, Protocol::kSimple, true, true, 65536.0, bytes, p.longest_chunk * bytes, 1}, built_in_costs());
    const auto of = [&](CostTerm t) { return n[static_cast<size_t>(t)]; };
    return std::vector<double>{of(CostTerm::kPullByte), of(CostTerm::kFreshPullByte), of(CostTerm::kFarPullByte),
                               of(CostTerm::kFarFreshPullByte), of(CostTerm::kBlockByte)};
  };
  EXPECT_EQ(pulled(Collective::kAllReduce, 65536), (std::vector<double>{0, 65536, 0, 0, 32768}));
  EXPECT_EQ(pulled(Collective::kReduceScatter, 65536), (std::vector<double>{32768, 0, 0, 0, 32768}));
  EXPECT_EQ(pulled(Collective::kAllGather, 65536), (std::vector<double>{32768, 0, 0, 0, 0}));
  EXPECT_EQ(pulled(Collective::kAllReduce, 8 << 20), (std::vector<double>{0, 0, 0, 8 << 20, 0}));
}

// A long chunk is several messages. Each further one costs a hand-over, unless other ranks use the core meanwhile.
TEST(CostModel, FurtherMessagesOfAChunkWait) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "ring", 2);
  const auto loops = [&](double bytes, double message, int per_core) {
    const CostCase c{&p, Protocol::kSimple, false, false, message, bytes, p.longest_chunk * bytes, per_core};
    return cost_counts(c, built_in_costs())[static_cast<size_t>(CostTerm::kLoop)];
  };
  EXPECT_EQ(loops(32768, 16384, 1), 0);
  EXPECT_EQ(loops(262144, 16384, 1), p.rounds * 7);
  EXPECT_EQ(loops(262144, 65536, 1), p.rounds);
  EXPECT_EQ(loops(262144, 16384, 2), 0);
}

// While a pipeline of ranks with unequal work fills, some wait. Ranks with equal work begin at once.
TEST(CostModel, OnlyUnequalRanksFillAPipeline) {
  const auto ring_bytes = [](const ScheduleProfile& p, double message) {
    const CostCase c{&p, Protocol::kSimple, false, false, message, 1 << 20, p.longest_chunk * (1 << 20), 1};
    return cost_counts(c, built_in_costs())[static_cast<size_t>(CostTerm::kRingByte)];
  };
  for (const int nranks : {2, 3, 4, 5, 12}) {
    const ScheduleProfile ring = profile(Collective::kAllReduce, "ring", nranks);
    EXPECT_EQ(ring_bytes(ring, 65536), ring_bytes(ring, 16384)) << nranks;
  }
  const ScheduleProfile tree = profile(Collective::kAllReduce, "tree", 4);
  ASSERT_GT(tree.rounds, 1);
  EXPECT_NEAR(ring_bytes(tree, 65536) - ring_bytes(tree, 16384), (tree.rounds - 1) * (65536 - 16384), 1e-6);
}

TEST(ScheduleProfile, RoundsOfEveryAlgorithmAreItsStepsOrFewer) {
  for (const Algorithm& a : all_algorithms())
    for (int nranks : {2, 3, 4, 8, 16}) {
      const ScheduleProfile p = profile_schedule(a, nranks, nranks - 1, 1);
      const auto steps = static_cast<double>(a.cost(nranks).steps);
      EXPECT_GE(p.rounds, 0) << a.name;
      // Calls block: the next one begins when the last is complete. A rooted one may need no wait, and none needs many
      // more than its steps.
      EXPECT_LE(p.rounds, steps + 1) << collective_name(a.collective) << " " << a.name << " of " << nranks;
      EXPECT_GT(p.busiest.steps + p.busiest.credits + p.busiest.peer_share, 0) << a.name;
    }
}

TEST(ScheduleProfile, SharedCoresCountChangesOfRank) {
  const double own = profile(Collective::kAllReduce, "one_shot", 8, 1).rounds;
  const double two = profile(Collective::kAllReduce, "one_shot", 8, 2).rounds;
  const double four = profile(Collective::kAllReduce, "one_shot", 8, 4).rounds;
  EXPECT_LT(own, two);
  EXPECT_LT(two, four);
  EXPECT_GE(profile(Collective::kAllReduce, "two_shot", 8, 4).rounds, four);
}

TEST(ScheduleProfile, AScheduleThatStopsIsNoticed) {
  Schedule s{Collective::kAllReduce, 2, 0, {}};
  for (Rank r = 0; r < 2; ++r) {  // both receive, no rank sends
    RankSchedule rank;
    rank.rank = r;
    rank.nranks = 2;
    rank.port_sets.push_back({Port{1 - r, 0, kUnicast}});
    Instruction recv;
    recv.verb = Verb::kRecv;
    recv.recv_set = 1;
    rank.lanes.push_back({recv});
    s.ranks.push_back(rank);
  }
  EXPECT_LT(count_rounds(s, 1), 0);
}

TEST(ScheduleProfile, ManyRanksAreSampledAndStayFinite) {
  for (const Algorithm& a : all_algorithms()) {
    const ScheduleProfile p = profile_schedule(a, 64, 5, 2);
    EXPECT_DOUBLE_EQ(p.rounds, static_cast<double>(a.cost(64).steps) * 2) << a.name;
  }
}

double forecast(const ScheduleProfile& p, double bytes, int ranks_per_core, Protocol protocol = Protocol::kSimple,
                double message_bytes = 16 * 1024) {
  const CostModel model = built_in_costs();
  CostCase c{&p, protocol, false, false, message_bytes, bytes, p.longest_chunk * bytes, ranks_per_core};
  c.lap_bytes = lap_bytes(message_bytes, ranks_per_core > 1 ? 8 : 32);
  return forecast_ns(cost_counts(c, model), model, ranks_per_core);
}

TEST(CostModel, GrowsWithBytes) {
  for (const Algorithm& a : all_algorithms())
    for (int per_core : {1, 2, 4}) {
      const ScheduleProfile p = profile_schedule(a, 8, 0, per_core);
      const CostModel model = built_in_costs();
      double last = 0;
      for (double bytes = 8; bytes < 1e9; bytes *= 1.7)
        for (bool by_copy : {false, true}) {
          if (by_copy && !a.pulls_only) continue;
          const CostCase c{&p,    Protocol::kSimple,       a.direct, by_copy, 64 * 1024.0,
                           bytes, p.longest_chunk * bytes, per_core};
          const double ns = forecast_ns(cost_counts(c, model), model, per_core);
          EXPECT_TRUE(std::isfinite(ns) && ns > 0) << a.name;
          if (!a.pulls_only) {
            EXPECT_GE(ns, last) << a.name << " " << bytes;
            last = ns;
          }
        }
    }
}

TEST(CostModel, GrowsWithRanksOnACore) {
  for (std::string_view name : {"ring", "one_shot", "two_shot"})
    for (double bytes : {1e3, 1e6}) {
      const double two = forecast(profile(Collective::kAllReduce, name, 8, 2), bytes, 2);
      EXPECT_LT(two, forecast(profile(Collective::kAllReduce, name, 8, 4), bytes, 4)) << name;
    }
}

TEST(CostModel, LinesForSmallAndSlotsForLargeMessages) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "one_shot", 2);
  EXPECT_LT(forecast(p, 8, 1, Protocol::kInline, 448), forecast(p, 8, 1));
  EXPECT_GT(forecast(p, 1e5, 1, Protocol::kInline, 448), forecast(p, 1e5, 1));
}

TEST(CostModel, RanksOfACoreSendLongChunksInShortMessages) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "ring", 4, 2);
  EXPECT_LT(forecast(p, 8 << 20, 2), forecast(p, 8 << 20, 2, Protocol::kSimple, 64 * 1024));
}

// fp32 in and out, bf16 between ranks. Pulled data is fp32 and rounded when it is added.
TEST(CostModel, MixedTypesAreStagedNearTheCoresAndPulledBeyond) {
  const CostModel model = built_in_costs();
  const ScheduleProfile staged = profile(Collective::kReduceScatter, "two_shot", 2);
  const ScheduleProfile pulled = profile(Collective::kReduceScatter, "pull", 2);
  auto ns = [&](const ScheduleProfile& p, double user_bytes) {
    const bool direct = p.busiest.pulls > 0;
    const double wire_bytes = user_bytes / 2;
    const CostCase c{&p,         Protocol::kSimple, direct, direct,     16 * 1024.0,
                     wire_bytes, wire_bytes / 2,    1,      user_bytes, true};
    return forecast_ns(cost_counts(c, model), model, 1);
  };
  EXPECT_LT(ns(staged, 1 << 19), ns(pulled, 1 << 19));
  EXPECT_GT(ns(staged, 4 << 20), ns(pulled, 4 << 20));
  EXPECT_GT(ns(staged, 32 << 20), ns(pulled, 32 << 20));
  const CostCase one_type{&pulled, Protocol::kSimple, true, true, 65536.0, 1e6, 5e5, 1};
  const CostCase mixed{&pulled, Protocol::kSimple, true, true, 65536.0, 5e5, 25e4, 1, 1e6, true};
  const CostVector a = cost_counts(one_type, model), b = cost_counts(mixed, model);
  EXPECT_DOUBLE_EQ(b[static_cast<size_t>(CostTerm::kPullByte)], a[static_cast<size_t>(CostTerm::kPullByte)]);
  EXPECT_GT(b[static_cast<size_t>(CostTerm::kUserByte)], a[static_cast<size_t>(CostTerm::kUserByte)]);
}

TEST(CostCorrections, LieOnLinesBetweenTheMeasuredSizes) {
  CostCorrections c;
  c.note_known(3, 7, CostForm::kShort);
  int8_t* at = c.sixteenths[3][7][static_cast<size_t>(CostForm::kShort)];
  at[0] = CostCorrections::encode(2);
  at[1] = CostCorrections::encode(0.5);
  for (size_t k = 2; k < CostCorrections::kSizes; ++k) at[k] = CostCorrections::encode(8);
  auto factor = [&](double bytes) { return c.factor(3, 7, CostForm::kShort, bytes); };
  EXPECT_DOUBLE_EQ(factor(8), 2);
  EXPECT_DOUBLE_EQ(factor(1), 2) << "as at the least size";
  EXPECT_DOUBLE_EQ(factor(16), 1) << "half way in logarithms";
  EXPECT_DOUBLE_EQ(factor(32), 0.5);
  EXPECT_DOUBLE_EQ(factor(1e12), 8) << "as at the largest size";
  EXPECT_DOUBLE_EQ(c.factor(3, 7, CostForm::kLong, 8), 1) << "not measured";
  EXPECT_DOUBLE_EQ(c.factor(CostCorrections::kWorlds, 7, CostForm::kShort, 8), 1);
  EXPECT_DOUBLE_EQ(c.factor(3, CostCorrections::kRows, CostForm::kShort, 8), 1) << "an own algorithm beyond the table";
  for (const double ratio : {1e-9, 1e9})
    EXPECT_NEAR(CostCorrections::decode(CostCorrections::encode(ratio)), ratio < 1 ? 1 / 128.0 : 128, 2);
}

TEST(CostCorrections, AreThoseOfTheNearestWorldThatWasMeasured) {
  EXPECT_EQ(CostCorrections::world_of(2, 1), 0u);
  EXPECT_EQ(CostCorrections::world_of(64, 1), 2u);
  EXPECT_EQ(CostCorrections::world_of(4, 2), 3u);
  EXPECT_EQ(CostCorrections::world_of(64, 32), 4u);
  CostCorrections c;
  for (size_t w = 0; w < CostCorrections::kWorlds; ++w) EXPECT_EQ(c.nearest_measured(w), CostCorrections::kWorlds);
  c.note_known(0, 5, CostForm::kLong);
  c.note_known(3, 9, CostForm::kInline);
  for (const size_t w : {0u, 1u, 2u}) EXPECT_EQ(c.nearest_measured(w), 0u);
  for (const size_t w : {3u, 4u}) EXPECT_EQ(c.nearest_measured(w), 3u);
  c = {};
  c.note_known(4, 0, CostForm::kMapped);
  EXPECT_EQ(c.nearest_measured(0), CostCorrections::kWorlds) << "measurements on shared cores do not apply to others";
  EXPECT_EQ(c.nearest_measured(3), 4u);
}

ScheduleProfile profile_on(std::string_view hosts, Collective c, std::string_view name) {
  return profile_schedule(named(c, name), *HostLayout::parse(hosts), 0, 1);
}
double host_count(const ScheduleProfile& p, CostTerm term, double bytes) {
  const CostCase c{&p, Protocol::kSimple, false, false, 64 * 1024.0, bytes, p.longest_chunk * bytes, 1};
  return cost_counts(c, built_in_costs())[static_cast<size_t>(term)];
}

TEST(ScheduleProfile, CountsWhatCrossesBetweenHosts) {
  const ScheduleProfile one = profile(Collective::kAllReduce, "ring", 4);
  EXPECT_EQ(one.crossings, 0);
  EXPECT_EQ(one.host_share, 0);
  EXPECT_EQ(one.busiest.host_messages, 0);
  const ScheduleProfile ring = profile_on("2x2", Collective::kAllReduce, "ring");
  EXPECT_DOUBLE_EQ(ring.crossings, 3);
  EXPECT_DOUBLE_EQ(ring.host_share, 1.5);           // 2(N-1)/N over one of its links
  EXPECT_DOUBLE_EQ(ring.busiest.host_messages, 6);  // of the 12 that it sends or receives
  const ScheduleProfile two = profile_on("2x2", Collective::kAllReduce, "hierarchical");
  EXPECT_DOUBLE_EQ(two.crossings, 2);
  EXPECT_DOUBLE_EQ(two.host_share, 1);             // 2(M-1)/M for both ranks of a host together
  EXPECT_DOUBLE_EQ(two.busiest.host_messages, 4);  // a sum and a complete chunk, each way
  const ScheduleProfile shot = profile_on("2x2", Collective::kAllReduce, "one_shot");
  EXPECT_DOUBLE_EQ(shot.crossings, 1);
  EXPECT_DOUBLE_EQ(shot.host_share, 4) << "written once, but once for each reader on another host";
}

// Sampling few ranks for statements about many must agree if both are known.
TEST(ScheduleProfile, OfManyRanksOnHosts) {
  for (const char* name : {"ring", "hierarchical", "hierarchical_one_shot"})
    for (const char* text : {"8x8", "13x5"}) {
      const HostLayout hosts = *HostLayout::parse(text);
      const ScheduleProfile p = profile_on(text, Collective::kAllReduce, name);
      EXPECT_DOUBLE_EQ(p.crossings, static_cast<double>(cost_of(named(Collective::kAllReduce, name), hosts).crossings));
      const double m = hosts.num_hosts(), n = hosts.nranks();
      const double expected = std::string_view(name) == "ring"           ? 2 * (n - 1) / n
                              : std::string_view(name) == "hierarchical" ? 2 * (m - 1) / m
                                                                         : m - 1;
      EXPECT_NEAR(p.host_share, expected, 1e-9) << name << " " << text;
    }
}

TEST(ScheduleProfile, TheTopOfATreeSendsLessThanOthers) {
  EXPECT_DOUBLE_EQ(profile_on("8x8", Collective::kAllReduce, "tree").host_share, 2);
  EXPECT_DOUBLE_EQ(profile_on("24x4", Collective::kAllReduce, "tree").host_share, 2) << "only three hosts are computed";
}

TEST(CostModel, CountsCrossingsMessagesAndBytesBetweenHosts) {
  const ScheduleProfile ring = profile_on("2x2", Collective::kAllReduce, "ring");
  EXPECT_DOUBLE_EQ(host_count(ring, CostTerm::kHostHop, 1e6), 3);
  EXPECT_DOUBLE_EQ(host_count(ring, CostTerm::kHostByte, 1e6), 1.5e6);
  EXPECT_DOUBLE_EQ(host_count(ring, CostTerm::kHostMessage, 1e6), 6 * std::ceil(250000 / 65536.0));
  EXPECT_DOUBLE_EQ(host_count(profile(Collective::kAllReduce, "ring", 4), CostTerm::kHostHop, 1e6), 0);
}

// Of two ranks on two hosts neither waits for the other's message before it sends: there is no pipeline to fill.
TEST(CostModel, TheLinkOfTwoHostsRunsFromTheStart) {
  const ScheduleProfile ring = profile_on("2x1", Collective::kAllReduce, "ring");
  CostCase c{&ring, Protocol::kSimple, false, false, 65536.0, 1e6, ring.longest_chunk * 1e6, 1};
  const CostVector fills = cost_counts(c, built_in_costs());
  c.both_send = true;
  const CostVector runs = cost_counts(c, built_in_costs());
  for (size_t t = 0; t < kNumCostTerms; ++t) {
    const bool of_rings =
        t == static_cast<size_t>(CostTerm::kRingByte) || t == static_cast<size_t>(CostTerm::kDirtyRingByte);
    const double less = of_rings ? 65536 * (ring.rounds - 1) : 0;
    EXPECT_NEAR(fills[t] - runs[t], less, 1e-6) << kCostTerms[t].name;
  }
  EXPECT_GT(ring.rounds, 1);
}

TEST(CostModel, AShortMessageCostsAShareOfItsSlowStart) {
  const ScheduleProfile p = profile(Collective::kAllReduce, "one_shot", 2);
  const auto count = [&](double bytes, double message_bytes, int ranks_per_core) {
    const CostCase c{&p, Protocol::kSimple, false, false, message_bytes, bytes, bytes, ranks_per_core};
    return cost_counts(c, built_in_costs())[static_cast<size_t>(CostTerm::kDataHandover)];
  };
  EXPECT_DOUBLE_EQ(count(0, 65536, 1), 0);
  EXPECT_DOUBLE_EQ(count(1024, 65536, 1), p.rounds / 4.0);
  EXPECT_DOUBLE_EQ(count(1 << 20, 1024, 1), p.rounds / 4.0);
  for (const double bytes : {4096.0, 65536.0, 1e8}) EXPECT_DOUBLE_EQ(count(bytes, 65536, 1), p.rounds);
  EXPECT_DOUBLE_EQ(count(1024, 65536, 2), p.rounds);
}

// Links so slow that only they matter: one crossing instead of three, and two thirds of the bytes.
TEST(CostModel, SlowLinksShowTheTwoLevels) {
  CostModel model = built_in_costs();
  auto ns = [&](std::string_view name, double bytes) {
    const ScheduleProfile p = profile_on("2x2", Collective::kAllReduce, name);
    const CostCase c{&p, Protocol::kSimple, false, false, 64 * 1024.0, bytes, p.longest_chunk * bytes, 1};
    return forecast_ns(cost_counts(c, model), model, 1);
  };
  model.spread[static_cast<size_t>(CostTerm::kHostHop)] = 1e6;
  for (const double bytes : {64.0, 4096.0, 16384.0})
    EXPECT_GT(ns("ring", bytes) / ns("hierarchical_one_shot", bytes), 2.5) << bytes;
  model.spread[static_cast<size_t>(CostTerm::kHostByte)] = 8;
  for (const char* name : {"hierarchical", "hierarchical_one_shot"})
    EXPECT_NEAR(ns("ring", 16 << 20) / ns(name, 16 << 20), 1.5, 0.1) << name;
}

TEST(CostModel, ForecastIsTheSumOfCountsTimesConstants) {
  CostModel model = built_in_costs();
  CostVector counts{};
  counts[static_cast<size_t>(CostTerm::kHandover)] = 3;
  counts[static_cast<size_t>(CostTerm::kRingByte)] = 1000;
  model.spread[static_cast<size_t>(CostTerm::kHandover)] = 100;
  model.spread[static_cast<size_t>(CostTerm::kRingByte)] = 0.5;
  model.oversubscribed[static_cast<size_t>(CostTerm::kHandover)] = 7;
  model.oversubscribed[static_cast<size_t>(CostTerm::kRingByte)] = 1;
  EXPECT_DOUBLE_EQ(forecast_ns(counts, model, 1), 800);
  EXPECT_DOUBLE_EQ(forecast_ns(counts, model, 2), 1021);
}

TEST(ScheduleProfile, CutIntoPartsIsNotEnoughForVariableCountsOfPairs) {
  Algorithm detour{};
  detour.name = "detour";
  detour.collective = Collective::kAllToAll;
  detour.summary = "by way of scratch";
  detour.record = [](Recorder& p, Rank r, int, Rank) {
    p.chunks(2, 2, 2);
    p.lane(0);
    p.copy(in(1 - r), scratch(1 - r));
    p.send(scratch(1 - r), {{1 - r, 0}});
    p.copy(in(r), out(r));
    p.lane(1);
    p.recv({{1 - r, 0}}, out(1 - r));
  };
  detour.cost = [](int) { return Cost{1, 1, 2}; };
  EXPECT_FALSE(profile_schedule(detour, 2, 0, 1).serves_variable_counts);
  EXPECT_TRUE(profile_schedule(named(Collective::kAllToAll, "one_shot"), 2, 0, 1).serves_variable_counts);
}

}  // namespace
}  // namespace rondo
