// Errors of the checker: one wrong schedule for each property that it proves. Values, connections, lengths and claims
// are here; checker_order_test.cc has the properties that depend on the order of events.
// timeout: 240
#include "schedule/checker.h"

#include <gtest/gtest.h>

#include <string>

#include "algorithms/all_pairs.h"
#include "schedule/text_schedules.h"
#include "support/shared.h"

namespace rondo {
namespace {

using algorithms::AllPairs;

TEST(Checker, AcceptsTwoRanksThatSwapAndAdd) {
  const CheckReport report = check_schedule(swap_and_add([](Rank r) { return own_after(r); }));
  EXPECT_TRUE(report.ok) << report.reason;
  EXPECT_EQ(report.steps, 1);
  EXPECT_EQ(report.sent_chunks, 1);
  EXPECT_EQ(report.fifo_depth, 1);
}

TEST(Checker, OrderOfOperandsCounts) {
  expect_refused(swap_and_add([](Rank) { return kOwnFirst; }), "added in another order than on rank 0");
}

TEST(Checker, AReductionOfThreeAtOnceIsNotTwoOfTwo) {
  const Schedule s = schedule_of(Collective::kAllReduce, 3, [](Recorder& p, Rank r) {
    const AllPairs all(r, 3);
    p.chunks(1, 1);
    p.lane(0);
    p.send(in(0), all.everybody(0));
    if (r != 0) return p.recv_reduce_copy(all.everybody(0), in(0), out(0), own_after(r), Sum::kFinal);
    p.recv_reduce_copy({{1, 0, kGroupAll}}, in(0), out(0), kOwnFirst, Sum::kPartial);
    p.recv_reduce_copy({{2, 0, kGroupAll}}, out(0), out(0), kOwnFirst, Sum::kFinal);
  });
  expect_refused(s, "added in another order");
}

TEST(Checker, FinalFlagMissing) {
  expect_refused(swap_and_add([](Rank r) { return own_after(r); }, Sum::kPartial), "without the final flag");
}

TEST(Checker, FinalFlagTooEarly) {
  Schedule s = of("ring", Collective::kAllReduce, 3);
  s.ranks[1].lanes[1][0].flags |= kFlagFinal;
  expect_refused(s,
                 "rank 1 lane 1 pc 0 (recv_reduce_send in[2], from {0}, to {2}, own after 1, final): "
                 "calls a sum final that is not complete");
}

TEST(Checker, FinalFlagTwice) {
  Schedule s = of("ring", Collective::kAllReduce, 3);
  s.ranks[2].lanes[2][0].flags |= kFlagFinal;
  expect_refused(s, "final that was final before");
}

TEST(Checker, FinalFlagWithoutASum) {
  Schedule s = of("ring", Collective::kAllGather, 3);
  s.ranks[0].lanes[0][0].flags |= kFlagFinal;
  expect_refused(s, "where nothing is summed");
}

TEST(Checker, ContributionTwice) {
  const Schedule s = schedule_of(Collective::kAllReduce, 2, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    p.send(in(0), {{1 - r, 0}});
    p.recv_reduce_copy_send({{1 - r, 0}}, in(0), out(0), {{1 - r, 0}}, own_after(r), Sum::kFinal);
    p.recv_reduce_copy({{1 - r, 0}}, in(0), out(0), own_after(r), Sum::kPartial);
  });
  expect_refused(s, "adds to a complete sum", kValues);
  const Schedule own = schedule_of(Collective::kAllReduce, 3, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    p.send(in(0), {{(r + 1) % 3, 0}});
    p.recv_reduce_copy({{(r + 2) % 3, 0}}, in(0), out(0), kOwnFirst, Sum::kPartial);
    p.send(out(0), {{(r + 1) % 3, 0}});
    p.recv_reduce_copy({{(r + 2) % 3, 0}}, out(0), out(0), kOwnFirst, Sum::kFinal);
  });
  expect_refused(own, "adds the contributions of ranks {0} twice", kValues);
}

TEST(Checker, ContributionTwiceAmongManyRanks) {
  Schedule s = of("ring", Collective::kReduceScatter, 80);  // more than exact sets support
  // Rank 7's chunk 5 is replaced by its chunk 4.
  s.ranks[7].lanes[1][0].src_first = 4;
  expect_refused(s, "adds contributions to different chunks");
  Schedule bridged = of("two_shot", Collective::kReduceScatter, 80);
  for (Instruction& i : bridged.ranks[9].lanes[0])
    if (i.src_first == 12) i.src_first = 13;
  expect_refused(bridged, "adds contributions to different chunks");
}

TEST(Checker, ContributionMissing) {
  const Schedule s = schedule_of(Collective::kAllReduce, 2, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    p.copy(in(0), out(0));
  });
  expect_refused(s, "rank 0 ends with out[0] lacking the contributions of ranks {1}");
}

TEST(Checker, ChunkNeverWritten) {
  const Schedule s = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank r) {
    p.chunks(2, 2);
    p.lane(0);
    p.copy(in(0), out(0), Sum::kFinal);
  });
  expect_refused(s, "out[1] never written");
}

TEST(Checker, ChunksSwapped) {
  const Schedule s = schedule_of(Collective::kAllGather, 2, [](Recorder& p, Rank r) {
    p.chunks(1, 2);
    p.lane(0);
    p.copy_send(in(0), out(1 - r), {{1 - r, 0}});
    p.recv({{1 - r, 0}}, out(r));
  });
  expect_refused(
      s,
      "rank 0 ends with out[0] holding rank 1's in[0] instead of rank 0's in[0]; rank 0 lane 0 pc 1 (recv from {1}, "
      "into out[0]) writes it, with data from rank 1 lane 0 pc 0 (copy_send in[0], into out[0], to {0})",
      kValues);
}

TEST(Checker, ReadsWhatNobodyWrote) {
  const Schedule s = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    p.copy(out(0), out(0), Sum::kFinal);
  });
  expect_refused(s, "reads out[0] before anything is written there");
}

// --- connections --------------------------------------------------------------------------------------------------

TEST(Checker, TwoLanesOnOneConnection) {
  Schedule s = of("ring", Collective::kAllGather, 3);
  s.ranks[0].port_sets[s.ranks[0].lanes[1][0].send_set][0].tag = 2;  // lane 0's
  expect_refused(s, "is written by two lanes");
}

TEST(Checker, MessageNeverReceived) {
  Schedule s = swap_and_add([](Rank r) { return own_after(r); });
  s.ranks[0].lanes[0].push_back(s.ranks[0].lanes[0][0]);
  expect_refused(
      s,
      "rank 1 never receives 1 message that rank 0 sends to it with tag 0: rank 0 lane 0 pc 2 (send in[0], to {1}) "
      "sends it",
      kValues);
}

TEST(Checker, ConnectionNeverRead) {
  Schedule s = swap_and_add([](Rank r) { return own_after(r); });
  s.ranks[0].lanes[0].pop_back();
  expect_refused(s,
                 "rank 0 never receives the message that rank 1 sends to it: rank 1 lane 0 pc 0 (send in[0], to {0})");
}

TEST(Checker, ConnectionNeverWritten) {
  Schedule s = swap_and_add([](Rank r) { return own_after(r); });
  s.ranks[0].port_sets.push_back({{1, 9, 0}});
  s.ranks[0].lanes[0][1].recv_set = static_cast<uint16_t>(s.ranks[0].port_sets.size() - 1);
  expect_refused(s, "receives from rank 1, group 0, tag 9, which never sends such a message");
}

TEST(Checker, GroupAllMustMeanAll) {
  Schedule s = of("one_shot", Collective::kAllGather, 4);
  s.ranks[2].port_sets[1].pop_back();
  expect_refused(s, "to the readers {0 1} only");
}

TEST(Checker, OneMulticastOneSetOfReaders) {
  const Schedule s = schedule_of(Collective::kAllGather, 3, [](Recorder& p, Rank r) {
    p.chunks(1, 3);
    p.lane(0);
    p.send(in(0), {{(r + 1) % 3, 5, 7}});
    p.send(in(0), {{(r + 2) % 3, 5, 7}});
    p.recv({{(r + 1) % 3, 5, 7}}, out((r + 1) % 3));
    p.recv({{(r + 2) % 3, 5, 7}}, out((r + 2) % 3));
    p.copy(in(0), out(r));
  });
  expect_refused(s,
                 "rank 0 lane 0 pc 1 (send in[0], to {2}): the multicast of rank 0, group 7, tag 5 is meant for "
                 "different readers elsewhere");
}

TEST(Checker, PairsMustMeanTheSameReaders) {
  auto text = [](int hops) {  // group 7 has one reader: the neighbour at distance `hops`
    return schedule_of(Collective::kAllGather, 3, [hops](Recorder& p, Rank r) {
      p.chunks(1, 3);
      p.lane(0);
      p.send(in(0), {{(r + hops) % 3, 5, 7}});
      p.recv({{(r + 3 - hops) % 3, 5, 7}}, out((r + 3 - hops) % 3));
      p.send(in(0), {{(r + 3 - hops) % 3, 6}});
      p.recv({{(r + hops) % 3, 6}}, out((r + hops) % 3));
      p.copy(in(0), out(r));
    });
  };
  EXPECT_TRUE(check_pair(text(1), text(1)).ok) << check_pair(text(1), text(1)).reason;
  const CheckReport report = check_pair(text(1), text(2));
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.reason.find("operation 2: rank 0 lane 0 pc 0"), std::string::npos) << report.reason;
  EXPECT_NE(report.reason.find("meant for different readers"), std::string::npos) << report.reason;
}

TEST(Checker, MalformedInstructions) {
  auto broken = [](auto change) {
    Schedule s = of("ring", Collective::kAllReduce, 3);
    change(s.ranks[1].lanes[1][0]);
    return s;
  };
  expect_refused(broken([](Instruction& i) { i.verb = static_cast<Verb>(3); }), "is not a valid instruction");
  expect_refused(broken([](Instruction& i) { i.reserved = 1; }), "is not a valid instruction");
  expect_refused(broken([](Instruction& i) { i.src_first = 3; }), "chunk that does not exist");
  expect_refused(broken([](Instruction& i) { i.num_chunks = 0; }), "moves no chunk");
  expect_refused(broken([](Instruction& i) { i.num_chunks = 4; }), "chunk that does not exist");
  expect_refused(broken([](Instruction& i) { i.recv_set = 99; }), "names no port set");
  expect_refused(broken([](Instruction& i) { i.send_set = 0; }), "ports that do not fit its verb");
  expect_refused(broken([](Instruction& i) { i.src_position = 2; }), "after the last one");
  expect_refused(broken([](Instruction& i) { i.flags = kFlagCredit; }), "a credit that carries chunks");
  expect_refused(broken([](Instruction& i) {
                   i = {};
                   i.src_first = 9;
                 }),
                 "waits for an instruction that does not");
}

// --- lengths ------------------------------------------------------------------------------------------------------

CheckOptions only_ragged() { return {1, 1, 64, 1, 0, true}; }

TEST(Checker, ChunksMustAgreeOnLengths) {
  const Schedule uneven = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank) {
    p.chunks(2, 2, 2);
    p.lane(0);
    p.copy(in(0, 2), scratch(1, 2), Sum::kFinal);  // chunk 0 to chunk 1, which may be shorter
    p.copy(scratch(1, 2), out(0, 2));
  });
  EXPECT_TRUE(check_schedule(uneven, kValues).ok) << "equal lengths hide it";
  expect_refused(uneven, "moves chunks into chunks of another length [1 elements, 1 a message]", only_ragged());
}

TEST(Checker, EndsMustAgreeOnLengths) {
  // Rank 1 stores rank 0's chunk `first` as its own chunk 0 (scratch is as long as the input). A correct sum follows.
  auto text = [](int first) {
    return schedule_of(Collective::kAllReduce, 2, [first](Recorder& p, Rank r) {
      p.chunks(3, 3, 3);
      p.lane(0);
      if (r == 0) p.send(in(first), {{1, 9}});
      else p.recv({{0, 9}}, scratch(0));
      p.send(in(0, 3), {{1 - r, 0}});
      p.recv_reduce_copy({{1 - r, 0}}, in(0, 3), out(0, 3), own_after(r), Sum::kFinal);
    });
  };
  EXPECT_TRUE(check_schedule(text(1), kValues).ok) << "equal lengths hide it";
  expect_refused(text(1), "rank 1 lane 0 pc 0 waits for a message from rank 0 (tag 9)", only_ragged());
  Schedule longer = text(1);  // from 3 elements on both have messages
  longer.ranks[0].lanes[0][0].src_first = 2;
  CheckOptions two_a_message = only_ragged();
  expect_refused(longer, "waits for a message from rank 0 (tag 9)", two_a_message);
  EXPECT_TRUE(check_schedule(text(0), only_ragged()).ok);
}

TEST(Checker, ScratchIsCutAsInOrOut) {
  Schedule s = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank) {
    p.chunks(2, 2);
    p.lane(0);
    p.copy(in(0, 2), out(0, 2), Sum::kFinal);
  });
  s.ranks[0].scratch_chunks = 3;
  expect_refused(s, "3 chunks of scratch are neither as many as in nor as out");
}

TEST(Checker, RangesAreOneMessageForEachChunk) {
  // Both ranks send all of their chunks before they receive any: this needs as many slots as chunks.
  for (int num : {1, 3, 5}) {
    const Schedule s = schedule_of(Collective::kAllReduce, 2, [num](Recorder& p, Rank r) {
      p.chunks(num, num);
      p.lane(0);
      p.send(in(0, num), {{1 - r, 0}});
      p.recv_reduce_copy({{1 - r, 0}}, in(0, num), out(0, num), own_after(r), Sum::kFinal);
    });
    const CheckReport report = check_schedule(s);
    EXPECT_TRUE(report.ok) << report.reason;
    EXPECT_EQ(report.fifo_depth, num);
    EXPECT_EQ(report.sent_chunks, num);
    EXPECT_EQ(report.steps, 1);
  }
}

// --- claims -------------------------------------------------------------------------------------------------------

TEST(Checker, ClaimsAreCompared) {
  const Schedule ring = of("ring", Collective::kAllReduce, 4);
  CheckClaims claims;
  claims.cost = Cost{5, 6, 4};
  expect_refused(ring, "takes 6 steps where 5 are claimed", {}, claims);
  claims.cost = Cost{6, 5, 4};
  expect_refused(ring, "sends 6/4 S from its busiest rank where 5/4 are claimed", {}, claims);
  claims.cost = Cost{6, 3, 2};
  EXPECT_TRUE(check_schedule(ring, {}, claims).ok);
  claims.rank_order = true;
  expect_refused(ring, "not added in ascending rank order, as claimed", {}, claims);
  const auto order_of = [](const Schedule& s) { return check_schedule(s).order_fingerprint; };
  EXPECT_EQ(order_of(ring), order_of(of("ring", Collective::kAllReduce, 4)));
  EXPECT_NE(order_of(ring), order_of(of("two_shot", Collective::kAllReduce, 4)));
}

TEST(Checker, RowsAreCompared) {
  Algorithm row = *find_algorithm(Collective::kAllReduce, "direct");
  row.direct = false;
  EXPECT_FALSE(check_algorithm(row, 3).ok);
  row = *find_algorithm(Collective::kAllReduce, "ring");
  row.direct = true;
  EXPECT_FALSE(check_algorithm(row, 3).ok);
  row = *find_algorithm(Collective::kAllReduce, "ring");
  row.rank_order = true;
  EXPECT_FALSE(check_algorithm(row, 3).ok);
}

TEST(Checker, InstructionsInWords) {
  const RankSchedule ring = of("ring", Collective::kAllReduce, 4).ranks[0];
  EXPECT_EQ(instruction_text(ring, ring.lanes[0][0]), "send in[3], to {1}");
  EXPECT_EQ(instruction_text(ring, ring.lanes[1][2]),
            "recv_reduce_copy_send in[0], from {3}, into out[0], to {1}, own after 1, final");
  const RankSchedule direct = of("direct", Collective::kAllGather, 3).ranks[1];
  EXPECT_EQ(instruction_text(direct, direct.lanes[0][0]), "send_credit to {0 2}");
  EXPECT_EQ(instruction_text(direct, direct.lanes[0][2]), "copy_send_direct in[0], into out[1], to {0 2}");
}

TEST(Checker, ThousandRanksByFingerprints) {
  constexpr int kRanks = testing::kSanitized ? 300 : 1000;
  for (const char* name : {"ring", "tree", "recursive_doubling"}) {
    const CheckReport report =
        check_algorithm(*find_algorithm(Collective::kAllReduce, name), kRanks, CheckOptions::fingerprints());
    EXPECT_TRUE(report.ok) << name << ": " << report.reason;
  }
}

}  // namespace
}  // namespace rondo
