// Variable counts: the schedules that support them, the counts for which they are proven, and wrong ones that show only
// with different lengths.
// timeout: 120
#include "schedule/variable_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "algorithms/registry.h"
#include "schedule/check_counts.h"
#include "schedule/checker.h"
#include "schedule/text_schedules.h"

namespace rondo {
namespace {

using enum Collective;

Schedule pairwise_all_to_all(int nranks) {
  return schedule_of(kAllToAll, nranks, [nranks](Recorder& p, Rank r) {
    p.chunks(nranks, nranks);
    p.lane(0);
    p.copy(in(r), out(r));
    for (int hops = 1; hops < nranks; ++hops) {
      const Rank to = (r + hops) % nranks, from = (r + nranks - hops) % nranks;
      p.send(in(to), {{to, 0}});
      p.recv({{from, 0}}, out(from));
    }
  });
}

/// Rank 0's part travels 0 -> 1 -> 2; rank 1 forwards it with the length of `shape`. All other parts go straight.
Schedule passed_on(int nranks, Chunk shape) {
  return schedule_of(kAllGather, nranks, [=](Recorder& p, Rank r) {
    auto straight = [](Rank from, Rank to) { return from != to && !(from == 0 && to == 2); };
    p.chunks(1, nranks);
    p.lane(0);
    for (Rank to = 0; to < nranks; ++to)
      if (straight(r, to)) p.send(in(0), {{to, 0}});
    if (r == 0) p.send(in(0), {{1, 1}});
    p.copy(in(0), out(r));
    p.lane(1);
    if (r == 1) p.recv_send({{0, 1}}, shape, {{2, 1}});
    p.lane(2);
    for (Rank from = 0; from < nranks; ++from)
      if (straight(from, r)) p.recv({{from, 0}}, out(from));
    if (r == 2) p.recv({{1, 1}}, out(0));
  });
}

TEST(VariableCounts, OfTheRegistry) {
  for (const Algorithm& a : all_algorithms())
    for (int n : {1, 2, 3, 5, 9, 20}) {
      const Schedule s = record_all(a, n);
      const bool serves =
          std::ranges::all_of(s.ranks, [&](const RankSchedule& r) { return serves_variable_counts(r, a.collective); });
      const CheckReport report = check_schedule(s);
      EXPECT_TRUE(report.ok) << report.reason;
      EXPECT_EQ(report.count_patterns > 0, serves) << a.name << " " << collective_name(a.collective) << ", " << n;
      if (a.collective == kAllGather || a.collective == kReduceScatter) {
        EXPECT_TRUE(serves) << a.name << " " << collective_name(a.collective) << ", " << n;
      }
      if (a.collective == kAllReduce) {
        EXPECT_FALSE(serves);
      }
    }
}

TEST(VariableCounts, OfAllToAll) {
  for (int n = 1; n <= 8; ++n) {
    const CheckReport report = check_schedule(pairwise_all_to_all(n));
    EXPECT_TRUE(report.ok) << report.reason;
    EXPECT_GT(report.count_patterns, n <= 2 ? 0 : 5);
  }
}

TEST(VariableCounts, NeedOneChunkForEachPart) {
  RankSchedule s = pairwise_all_to_all(3).ranks[0];
  EXPECT_TRUE(serves_variable_counts(s, kAllToAll));
  s.in_chunks = s.out_chunks = 6;
  EXPECT_FALSE(serves_variable_counts(s, kAllToAll));
  EXPECT_FALSE(serves_variable_counts(record_rank(*find_algorithm(kAllReduce, "ring"), 0, 3), kAllReduce));
}

TEST(VariableCounts, OfPairsGoStraight) {
  auto serves = [](Collective c, auto text) {
    Recorder p(1, 3);
    p.lane(0);
    text(p);
    return serves_variable_counts(p.take(), c);
  };
  EXPECT_TRUE(serves(kGather, [](Recorder& p) {
    p.chunks(1, 3);
    p.send(in(0), {{0, 0}});
  }));
  EXPECT_FALSE(serves(kGather, [](Recorder& p) {  // forwards another rank's part
    p.chunks(1, 3);
    p.recv_send({{2, 0}}, in(0), {{0, 0}});
  }));
  EXPECT_FALSE(serves(kGather, [](Recorder& p) {
    p.chunks(1, 3, 3);
    p.recv({{2, 0}}, scratch(2));
  }));
  EXPECT_FALSE(serves(kAllToAll, [](Recorder& p) {
    p.chunks(3, 3);
    p.send(out(2), {{0, 0}});
  }));
  EXPECT_TRUE(serves(kGather, [](Recorder& p) {  // the beginning of a peer's input
    p.chunks(1, 3);
    p.pull({{2, 0}}, in(0), out(2));
  }));
  EXPECT_FALSE(serves(kScatter, [](Recorder& p) {  // only the root knows the start of the part in its input
    p.chunks(3, 1);
    p.pull({{0, 0}}, in(1), out(0));
  }));
  EXPECT_FALSE(serves(kAllToAll, [](Recorder& p) {
    p.chunks(3, 3);
    p.pull({{2, 0}}, in(1), out(2));
  }));
}

// Refused for variable counts, but for no other reason.
void expect_refused_with_counts(const Schedule& s, const std::string& why) {
  CheckOptions equal;
  equal.ragged = false;
  EXPECT_TRUE(check_schedule(s, equal).ok) << "equal lengths hide it: " << check_schedule(s, equal).reason;
  expect_refused(s, why);
}

TEST(VariableCounts, MessagesAreAsLongAsWhatTheyCarry) {
  for (int n : {3, 5, 20}) {
    const CheckReport report = check_schedule(passed_on(n, out(0)));
    EXPECT_TRUE(report.ok) << report.reason;
  }
  expect_refused_with_counts(passed_on(5, out(4)),
                             "rank 1 lane 1 pc 0 (recv_send from {0}, to {2}): expects 2 elements from rank 0, "
                             "which sends 1 [variable counts: part 4 is a giant among ones; 2 a message]");
}

TEST(VariableCounts, NothingOnOneEndOnly) {
  // If part 0 is not empty and part 1 is, rank 1 forwards nothing of rank 0's message.
  expect_refused_with_counts(passed_on(3, in(0)),
                             "rank 2 lane 2 pc 1 waits for a message from rank 1 (tag 1) [variable counts: 1 0 0;");
  // If rank 2 has nothing, rank 1 forwards nothing.
  expect_refused_with_counts(passed_on(5, out(2)),
                             "rank 2 lane 2 pc 3 waits for a message from rank 1 (tag 1) [variable counts: "
                             "rank 2 has nothing;");
}

TEST(VariableCounts, MatricesAndVectors) {
  for (int n : {1, 2, 3, 4, 5, 16, 17, 64}) {
    const size_t ranks = static_cast<size_t>(n);
    bool zero = false, giant = false;
    for (const check::Counts& c : check::count_patterns(kAllGather, n)) {
      ASSERT_EQ(c.part_elems.size(), ranks) << c.name;
      const uint64_t longest = *std::ranges::max_element(c.part_elems);
      EXPECT_LE(longest, check::kLongestPartElems);
      zero |= std::ranges::count(c.part_elems, 0u) > 0;
      giant |= std::ranges::count(c.part_elems, longest) == 1 && longest > 2;
    }
    EXPECT_TRUE(zero && giant) << n;
    bool gives_nothing = false, gets_nothing = false, lopsided = false;
    for (const check::Counts& c : check::count_patterns(kAllToAll, n)) {
      ASSERT_EQ(c.part_elems.size(), ranks * ranks) << c.name;
      for (size_t r = 0; r < ranks; ++r) {
        uint64_t given = 0, gotten = 0;
        for (size_t k = 0; k < ranks; ++k) given += c.part_elems[r * ranks + k], gotten += c.part_elems[k * ranks + r];
        gives_nothing |= given == 0;
        gets_nothing |= gotten == 0;
        lopsided |= given != gotten;
      }
    }
    EXPECT_TRUE(gives_nothing || n == 0) << n;
    EXPECT_TRUE(gets_nothing) << n;
    EXPECT_TRUE(lopsided || n == 1) << n;
  }
  EXPECT_EQ(check::count_patterns(kReduceScatter, 4).size(), 81u);
  EXPECT_EQ(check::count_patterns(kAllToAll, 2).size(), 81u);
}

}  // namespace
}  // namespace rondo
