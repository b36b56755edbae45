// labels: unit proof
// timeout: 300
// Rows that depend on hosts, with ranks on several: proven for 1..33 ranks on many layouts, for pairs on shared
// connections, with the stated costs, crossings and bytes between hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "algorithms/row_label.h"
#include "protocol/fifo.h"
#include "schedule/checker.h"

namespace rondo {
namespace {

HostLayout hosts(std::string_view text) {
  const Expected<HostLayout> layout = HostLayout::parse(text);
  EXPECT_TRUE(layout.ok()) << text;
  return *layout;
}

std::vector<Algorithm> rows_that_depend_on_hosts() {
  std::vector<Algorithm> rows;
  for (const Algorithm& a : all_algorithms())
    if (depends_on_hosts(a)) rows.push_back(a);
  return rows;
}

class OnHosts : public ::testing::TestWithParam<Algorithm> {};

TEST_P(OnHosts, IsProvenForOneToThirtyThreeRanks) {
  for (int n = 1; n <= 33; ++n)
    for (const HostLayout& layout : layouts_to_prove(n)) {
      const CheckReport report = check_roots(GetParam(), layout);
      EXPECT_TRUE(report.ok) << layout.text() << ": " << report.reason;
      EXPECT_LE(report.fifo_depth, static_cast<int>(kRingMessages)) << layout.text() << ": no room is sure for more";
      EXPECT_LE(report.fifo_depth_sliced, 5) << layout.text() << ": more than one message beyond a chunk's four";
      if (::testing::Test::HasFailure()) return;
    }
}

TEST_P(OnHosts, IsProvenOnUnevenHosts) {
  for (const std::string_view text : {"1+4", "4+1", "3+2", "2+3+1", "1+1+5", "5+1+1+1", "0,1,1,0,2,1,0",
                                      "0,1,2,0,1,0,0,0", "0,0,1,2,3,4,1", "7+7+3", "2+9"}) {
    const CheckReport report = check_roots(GetParam(), hosts(text));
    EXPECT_TRUE(report.ok) << text << ": " << report.reason;
    EXPECT_LE(report.fifo_depth_sliced, 5) << text;
  }
}

TEST_P(OnHosts, IsRightAmongManyRanks) {
  for (const std::string_view text : {"8x16", "5x13", "64x4", "16+16+15"}) {
    const CheckReport report = check_algorithm(GetParam(), hosts(text), CheckOptions::fingerprints());
    EXPECT_TRUE(report.ok) << text << ": " << report.reason;
  }
}

TEST_P(OnHosts, MayRunAheadIntoEveryOther) {
  for (const std::string_view text : {"2x2", "0,1,0,1", "3+2"})
    for (const Algorithm& next : all_algorithms()) {
      if (next.direct) continue;  // the planner uses it only on one host
      const HostLayout layout = hosts(text);
      const Rank root = collective_is_rooted(GetParam().collective) ? layout.nranks() / 2 : 0;
      for (const CheckReport& report :
           {check_pair(GetParam(), next, layout, {}, root), check_pair(next, GetParam(), layout, {}, 0, root)})
        EXPECT_TRUE(report.ok) << row_label(next) << ", " << text << ": " << report.reason;
    }
}

TEST_P(OnHosts, IsWhatItIsWithoutHostsWhereThereIsOne) {
  for (int n = 1; n <= 9; ++n)
    for (Rank r = 0; r < n; ++r) {
      const HostLayout one = HostLayout::of(std::vector<int>(static_cast<size_t>(n), 7));
      Recorder with(r, n), without(r, n);
      const Rank root = collective_is_rooted(GetParam().collective) ? n / 2 : 0;
      GetParam().record_on_hosts(with, r, one, root);
      GetParam().record(without, r, n, root);
      const RankSchedule a = with.take(), b = without.take();
      EXPECT_EQ(a.lanes, b.lanes);
      EXPECT_EQ(a.port_sets, b.port_sets);
      EXPECT_EQ(GetParam().cost(n).steps, GetParam().cost_on_hosts(one).steps) << n;
      EXPECT_EQ(GetParam().cost(n).sent_num * GetParam().cost_on_hosts(one).sent_den,
                GetParam().cost_on_hosts(one).sent_num * GetParam().cost(n).sent_den)
          << n;
    }
}

HostLayout in_order(const HostLayout& layout, const std::vector<Rank>& order) {
  const Expected<HostLayout> ordered = layout.in_order(order);
  EXPECT_TRUE(ordered.ok()) << ordered.status().to_string();
  return ordered.ok() ? *ordered : layout;
}

// Shuffles the hosts and the ranks of each.
HostLayout shuffled(const HostLayout& layout, std::mt19937& random) {
  std::vector<int> hosts_in_order(static_cast<size_t>(layout.num_hosts()));
  std::iota(hosts_in_order.begin(), hosts_in_order.end(), 0);
  std::shuffle(hosts_in_order.begin(), hosts_in_order.end(), random);
  std::vector<Rank> order;
  for (const int h : hosts_in_order) {
    std::vector<Rank> ranks;
    for (int l = 0; l < layout.num_ranks(h); ++l) ranks.push_back(layout.rank(h, l));
    std::shuffle(ranks.begin(), ranks.end(), random);
    order.insert(order.end(), ranks.begin(), ranks.end());
  }
  return in_order(layout, order);
}

TEST_P(OnHosts, IsProvenInAnyOrder) {
  std::mt19937 random(5);
  for (const std::string_view text : {"2x2", "0,1,0,1", "3+2", "2+3+1", "0,1,2,0,1,0,0,0", "3x3", "1+4", "7+6"}) {
    const HostLayout layout = shuffled(hosts(text), random);
    const CheckReport report = check_roots(GetParam(), layout);
    EXPECT_TRUE(report.ok) << text << ": " << report.reason;
    if (GetParam().for_hosts) continue;
    const CheckReport places = check_roots(GetParam(), HostLayout(layout.nranks()).with_places(layout));
    EXPECT_TRUE(places.ok) << "places " << text << ": " << places.reason;
    EXPECT_LE(places.fifo_depth, static_cast<int>(kRingMessages)) << text;
    EXPECT_EQ(places.crossings, 0) << text << ": they are of one host";
  }
}

TEST_P(OnHosts, MayRunAheadIntoEveryOtherWherePlacesAreFollowed) {
  if (GetParam().for_hosts) return;
  const HostLayout layout = HostLayout(4).with_places(in_order(hosts("0,1,0,1"), {3, 1, 0, 2}));
  const Rank root = collective_is_rooted(GetParam().collective) ? 2 : 0;
  for (const Algorithm& next : all_algorithms())
    for (const CheckReport& report :
         {check_pair(GetParam(), next, layout, {}, root), check_pair(next, GetParam(), layout, {}, 0, root)})
      EXPECT_TRUE(report.ok) << row_label(next) << ": " << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Registry, OnHosts, ::testing::ValuesIn(rows_that_depend_on_hosts()),
                         [](const auto& info) { return row_label(info.param); });

CheckReport report_of(Collective c, std::string_view name, std::string_view text) {
  const CheckReport report = check_roots(*find_algorithm(c, name), hosts(text), {1, 1, 64, 1, 0, false});
  EXPECT_TRUE(report.ok) << name << " " << text << ": " << report.reason;
  return report;
}

// Share of S over the link of the busiest host.
double share(const CheckReport& r) {
  return static_cast<double>(r.host_sent_chunks) / static_cast<double>(r.total_chunks);
}

TEST(Crossings, AreFewWhereTheyAreSaidToBe) {
  constexpr Collective kAllReduce = Collective::kAllReduce;
  EXPECT_EQ(report_of(kAllReduce, "ring", "2x2").crossings, 3);
  EXPECT_EQ(report_of(kAllReduce, "ring", "0,1,0,1").crossings, 3) << "through one host after the other";
  EXPECT_EQ(report_of(kAllReduce, "hierarchical_one_shot", "2x2").crossings, 1);
  for (const char* text : {"2x2", "0,1,0,1", "3x2", "2x3", "5x4", "3+2", "1+4", "2+1+1+6"}) {
    const double m = hosts(text).num_hosts();
    EXPECT_EQ(report_of(kAllReduce, "hierarchical_one_shot", text).crossings, 1) << text;
    EXPECT_EQ(report_of(kAllReduce, "hierarchical", text).crossings, 2) << text;
    EXPECT_DOUBLE_EQ(share(report_of(kAllReduce, "hierarchical", text)), 2 * (m - 1) / m) << text;
    EXPECT_EQ(report_of(Collective::kReduceScatter, "hierarchical", text).crossings, 1) << text;
    EXPECT_EQ(report_of(Collective::kAllGather, "hierarchical", text).crossings, 1) << text;
    EXPECT_DOUBLE_EQ(share(report_of(kAllReduce, "hierarchical_one_shot", text)), m - 1) << text;
    EXPECT_EQ(report_of(Collective::kBroadcast, "hierarchical", text).crossings, 1) << text;
    EXPECT_EQ(report_of(Collective::kReduce, "hierarchical", text).crossings, 1) << text;
    EXPECT_EQ(report_of(Collective::kBroadcast, "ring", text).crossings, m - 1) << text;
    EXPECT_EQ(report_of(Collective::kReduce, "ring", text).crossings, m - 1) << text;
    EXPECT_DOUBLE_EQ(share(report_of(Collective::kBroadcast, "ring", text)), 1) << text;
    EXPECT_DOUBLE_EQ(share(report_of(Collective::kBroadcast, "hierarchical", text)), m - 1) << text;
  }
  for (const char* text : {"2x2", "0,1,0,1", "4x8"}) {
    const double m = hosts(text).num_hosts(), n = hosts(text).nranks();
    EXPECT_DOUBLE_EQ(share(report_of(kAllReduce, "ring", text)), 2 * (n - 1) / n) << text;
    EXPECT_DOUBLE_EQ(share(report_of(Collective::kReduceScatter, "hierarchical", text)), (m - 1) / m) << text;
    EXPECT_DOUBLE_EQ(share(report_of(Collective::kAllGather, "hierarchical", text)), (m - 1) / m) << text;
  }
}

// A tree leaves and enters each host once, whatever its ranks.
TEST(Crossings, TreesCrossOncePerHost) {
  for (const char* text : {"2x2", "0,1,0,1,0,1", "4x4", "3+2+4"})
    for (const Collective c : {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
      const HostLayout layout = hosts(text);
      const Schedule s = record_all(*find_algorithm(c, "tree"), layout, 0);
      std::set<std::pair<Rank, Rank>> across;
      for (const RankSchedule& r : s.ranks)
        for (const Lane& lane : r.lanes)
          for (const Instruction& i : lane)
            for (const Port& p : r.send_ports(i))
              if (!layout.same_host(r.rank, p.peer)) across.insert({r.rank, p.peer});
      const size_t trees = 2 * static_cast<size_t>(layout.num_hosts() - 1), ways = c == Collective::kAllReduce ? 2 : 1;
      EXPECT_LE(across.size(), trees * ways) << text;
    }
}

// The ranks of a host share its link evenly.
TEST(Crossings, EveryRankSendsItsShare) {
  const HostLayout layout = hosts("3x4");
  for (const char* name : {"hierarchical", "hierarchical_one_shot"})
    for (Rank r = 0; r < layout.nranks(); ++r) {
      const RankSchedule s = record_rank(*find_algorithm(Collective::kAllReduce, name), r, layout);
      int away = 0;
      for (const Lane& lane : s.lanes)
        for (const Instruction& i : lane)
          for (const Port& p : s.send_ports(i)) away += layout.same_host(r, p.peer) ? 0 : i.num_chunks;
      const int per_host =
          std::string_view(name) == "hierarchical_one_shot" ? 2 * 4 : 2 * 2 * 4;  // (M-1), 2(M-1)/M of chunks
      EXPECT_EQ(away, per_host / 4) << name << ", rank " << r;
    }
}

TEST(HostLayout, IsReadAndWritten) {
  for (const char* text : {"2x2", "3+2", "1+4", "0,1,0,1", "4", "16x8", "0,0,1,0"}) EXPECT_EQ(hosts(text).text(), text);
  EXPECT_EQ(hosts("2+2").text(), "2x2");
  EXPECT_EQ(hosts("1x5"), HostLayout(5));
  EXPECT_EQ(hosts("7,3,7").text(), "0,1,0") << "numbered by their first ranks";
  EXPECT_EQ(hosts("9,9,9"), HostLayout(3));
  for (const char* text :
       {"", "x", "2x", "0x3", "3x0", "2x2x2", "3+0", "+", "a", "1,", "-1", "70000", "300x300", "0,1,x"})
    EXPECT_FALSE(HostLayout::parse(text).ok()) << text;
}

TEST(HostLayout, NumbersRanksAndPositions) {
  const HostLayout layout = hosts("0,1,1,0,2,1");
  EXPECT_EQ(layout.num_hosts(), 3);
  EXPECT_EQ(layout.most_ranks(), 3);
  EXPECT_EQ(layout.num_ranks(1), 3);
  std::vector<Rank> order;
  for (int at = 0; at < layout.nranks(); ++at) {
    const Rank r = layout.rank_at(at);
    order.push_back(r);
    EXPECT_EQ(layout.position(r), at);
    EXPECT_EQ(layout.rank(layout.host(r), layout.local(r)), r);
  }
  EXPECT_EQ(order, (std::vector<Rank>{0, 3, 1, 2, 5, 4}));
  EXPECT_TRUE(layout.same_host(2, 5));
  EXPECT_FALSE(layout.same_host(2, 3));
}

// The recorded order of the ring, from rank 0.
std::vector<Rank> ring_of(const HostLayout& layout) {
  std::vector<Rank> ring = {0};
  while (static_cast<int>(ring.size()) < layout.nranks()) {
    const RankSchedule s = record_rank(*find_algorithm(Collective::kAllGather, "ring"), ring.back(), layout);
    ring.push_back(s.send_ports(s.lanes[0][0]).front().peer);
  }
  return ring;
}

TEST(HostLayout, AnOrderIsWhatRingsFollow) {
  const HostLayout layout = in_order(hosts("0,1,1,0,2,1"), {5, 1, 2, 4, 3, 0});
  EXPECT_EQ(layout.host(5), 0);
  EXPECT_EQ(layout.host(4), 1);
  EXPECT_EQ(layout.host(0), 2);
  EXPECT_EQ(layout.num_ranks(0), 3);
  for (int at = 0; at < layout.nranks(); ++at) EXPECT_EQ(layout.position(layout.rank_at(at)), at);
  EXPECT_EQ(layout.local(2), 2);
  EXPECT_EQ(layout.rank(2, 0), 3);
  EXPECT_EQ(layout.by_rank(), hosts("0,1,1,0,2,1"));
  EXPECT_NE(layout, hosts("0,1,1,0,2,1"));
  EXPECT_EQ(layout.text(), "0,1,1,0,2,1") << "the order does not show";
  const HostLayout turned = in_order(hosts("2x2"), {2, 3, 0, 1});
  EXPECT_NE(turned, turned.by_rank());
  EXPECT_EQ(turned.by_rank(), hosts("2x2"));
  EXPECT_EQ(turned.text(), "2x2");
  EXPECT_EQ(turned.host(2), 0);
  EXPECT_EQ(ring_of(layout), (std::vector<Rank>{0, 5, 1, 2, 4, 3}));
  EXPECT_EQ(ring_of(hosts("0,1,1,0,2,1")), (std::vector<Rank>{0, 3, 1, 2, 5, 4}));
  const HostLayout places = HostLayout(4).with_places(hosts("0,1,0,1"));
  EXPECT_TRUE(places.one_host());
  EXPECT_EQ(places.by_rank(), HostLayout(4));
  EXPECT_NE(places, HostLayout(4));
  EXPECT_EQ(ring_of(places), (std::vector<Rank>{0, 2, 1, 3}));
  EXPECT_EQ(ring_of(4), (std::vector<Rank>{0, 1, 2, 3}));
}

TEST(HostLayout, RefusesWhatIsNoOrder) {
  for (const std::vector<Rank>& order :
       {std::vector<Rank>{0, 1, 2, 3}, {0, 2, 1}, {0, 2, 1, 1}, {0, 2, 1, 4}, {0, 2, -1, 3}, {}})
    EXPECT_EQ(hosts("0,1,0,1").in_order(order).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(hosts("0,1,0,1").in_order({3, 1, 0, 2}).ok());
  EXPECT_EQ(*HostLayout(3).in_order({2, 0, 1}), HostLayout(3)) << "of one host only places tell";
}

TEST(HostLayout, OfOneHostNeedsNothing) {
  const HostLayout one = 5;
  EXPECT_TRUE(one.one_host());
  EXPECT_EQ(one.num_hosts(), 1);
  EXPECT_EQ(one.num_ranks(0), 5);
  for (Rank r = 0; r < 5; ++r) {
    EXPECT_EQ(one.host(r), 0);
    EXPECT_EQ(one.local(r), r);
    EXPECT_EQ(one.rank_at(r), r);
  }
}

}  // namespace
}  // namespace rondo
