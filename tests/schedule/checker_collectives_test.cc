// The pre- and postconditions of every collective: a small correct schedule of each, and the checker's errors for wrong
// ones: missing and wrong parts, wrong roots, buffers that a rank does not have, early exits, in-place hazards.
#include <gtest/gtest.h>

#include <string>

#include "schedule/checker.h"
#include "schedule/text_schedules.h"
#include "schedule/linear_texts.h"

namespace rondo {
namespace {

using enum Collective;

void expect_proven(const Schedule& s) {
  const CheckReport report = check_schedule(s);
  EXPECT_TRUE(report.ok) << collective_name(s.collective) << ", " << s.nranks << " ranks, root " << s.root << ": "
                         << report.reason;
}

// --- one definition for each collective ---------------------------------------------------------------------------

Schedule broadcast(int n, Rank root) { return record_all(linear::row(kBroadcast), n, root); }
Schedule reduce(int n, Rank root) { return record_all(linear::row(kReduce), n, root); }
Schedule gather(int n, Rank root) { return record_all(linear::row(kGather), n, root); }
Schedule scatter(int n, Rank root) { return record_all(linear::row(kScatter), n, root); }
Schedule all_to_all(int n) { return record_all(linear::row(kAllToAll), n); }
Schedule barrier(int n) { return record_all(linear::row(kBarrier), n); }

/// An all-to-all, a gather and a scatter with parts cut into q chunks.
Schedule all_to_all_in_pieces(int nranks, int q) {
  return schedule_of(kAllToAll, nranks, 0, [=](Recorder& p, Rank r) {
    p.chunks(q * nranks, q * nranks);
    p.lane(0);
    p.copy(in(q * r, q), out(q * r, q));
    for (int hops = 1; hops < nranks; ++hops) {
      const Rank to = (r + hops) % nranks, from = (r + nranks - hops) % nranks;
      p.send(in(q * to, q), {{to, 0}});
      p.recv({{from, 0}}, out(q * from, q));
    }
  });
}
Schedule gather_in_pieces(int nranks, Rank root, int q) {
  return schedule_of(kGather, nranks, root, [=](Recorder& p, Rank r) {
    p.chunks(q, q * nranks);
    p.lane(0);
    if (r != root) return p.send(in(0, q), {{root, 0}});
    p.copy(in(0, q), out(q * r, q));
    for (Rank from = 0; from < nranks; ++from)
      if (from != root) p.recv({{from, 0}}, out(q * from, q));
  });
}
Schedule scatter_in_pieces(int nranks, Rank root, int q) {
  return schedule_of(kScatter, nranks, root, [=](Recorder& p, Rank r) {
    p.chunks(q * nranks, q);
    p.lane(0);
    if (r != root) return p.recv({{root, 0}}, out(0, q));
    for (Rank to = 0; to < nranks; ++to)
      if (to != root) p.send(in(q * to, q), {{to, 0}});
    p.copy(in(q * r, q), out(0, q));
  });
}

TEST(Collectives, RightOnesAreProven) {
  for (const Algorithm& a : linear::kRows)
    for (int n : {1, 2, 3, 4, 5, 6, 7, 17}) {
      const CheckReport report = check_roots(a, n);
      EXPECT_TRUE(report.ok) << collective_name(a.collective) << ", " << n << " ranks: " << report.reason;
      const bool has_parts = a.collective == kAllToAll || a.collective == kGather || a.collective == kScatter;
      EXPECT_EQ(report.count_patterns > 0, has_parts) << collective_name(a.collective);
    }
}

TEST(Collectives, PartsMayBeCutIntoSeveralChunks) {
  for (const Schedule& s : {all_to_all_in_pieces(4, 3), gather_in_pieces(4, 1, 3), scatter_in_pieces(4, 2, 3)}) {
    CheckOptions options;
    options.ragged = false;
    const CheckReport report = check_schedule(s, options);
    EXPECT_TRUE(report.ok) << report.reason;
  }
  // extent() cuts the whole, not each part, so that chunks of different parts have different lengths.
  expect_refused(all_to_all_in_pieces(4, 3), "waits for a message");
}

TEST(Collectives, WhatTheyCost) {
  const CheckReport parts = check_schedule(all_to_all(5));
  EXPECT_EQ(parts.total_chunks, 5);
  EXPECT_EQ(parts.sent_chunks, 4);
  const CheckReport up = check_schedule(gather(5, 2));
  EXPECT_EQ(up.total_chunks, 5);
  EXPECT_EQ(up.sent_chunks, 1);
  const CheckReport down = check_schedule(scatter(5, 2));
  EXPECT_EQ(down.steps, 1);
  EXPECT_EQ(down.sent_chunks, 4);
  const CheckReport meeting = check_schedule(barrier(5));
  EXPECT_EQ(meeting.steps, 3);
  EXPECT_EQ(meeting.sent_chunks, 0);
}

TEST(Collectives, RunIntoOneAnother) {
  const Schedule all[] = {broadcast(4, 1), broadcast(4, 2), reduce(4, 1),  reduce(4, 3), all_to_all(4),
                          gather(4, 0),    scatter(4, 3),   scatter(4, 0), barrier(4)};
  for (const Schedule& first : all)
    for (const Schedule& second : all) {
      const CheckReport report = check_pair(first, second);
      EXPECT_TRUE(report.ok) << collective_name(first.collective) << " to " << first.root << ", then "
                             << collective_name(second.collective) << " to " << second.root << ": " << report.reason;
    }
}

TEST(Collectives, BeyondExactSets) {
  for (const Schedule& s :
       {broadcast(70, 69), reduce(70, 33), all_to_all(70), gather(70, 1), scatter(70, 0), barrier(70)})
    EXPECT_TRUE(check_schedule(s, CheckOptions::fingerprints()).ok) << collective_name(s.collective);
  Schedule wrong = all_to_all(70);
  for (Instruction& i : wrong.ranks[9].lanes[0])
    if (i.has(kVerbSend) && i.src_first == 12) i.src_first = 13;
  expect_refused(wrong, "rank 12 ends with out[9] holding what belongs to chunk 13", CheckOptions::fingerprints());
}

// --- shapes -------------------------------------------------------------------------------------------------------

TEST(Collectives, ChunksMustFit) {
  Schedule s = all_to_all(3);
  for (RankSchedule& r : s.ranks) r.in_chunks = 6;
  expect_refused(s, "6 chunks in and 3 out do not fit the collective");
  s = scatter(3, 0);
  for (RankSchedule& r : s.ranks) r.out_chunks = 3;
  expect_refused(s, "3 chunks in and 3 out do not fit the collective");
  s = broadcast(3, 0);
  for (RankSchedule& r : s.ranks) r.out_chunks = 2;
  expect_refused(s, "1 chunks in and 2 out do not fit the collective");
}

TEST(Collectives, RootMustExist) {
  Schedule s = broadcast(3, 0);
  s.root = 3;
  expect_refused(s, "the root, rank 3, does not exist");
}

TEST(Collectives, MessagesOfTwoAreNone) {
  Schedule s = broadcast(2, 0);
  s.collective = kSend;
  expect_refused(s, "send and recv are not collectives of all ranks");
}

// --- contents of buffers -------------------------------------------------------------------------------------------

TEST(Collectives, WrongRootOfABroadcast) {
  Schedule s = broadcast(3, 1);
  s.root = 2;
  expect_refused(s,
                 "rank 1 lane 0 pc 0 (send in[0], to {0}): reads in[0], but only the root, rank 2, has an input in a "
                 "broadcast");
}

TEST(Collectives, WrongRootOfAReduce) {
  Schedule s = reduce(3, 1);
  s.root = 0;
  expect_refused(s,
                 "rank 1 lane 0 pc 0 (recv_reduce_copy in[0], from {0}, into out[0], own after 1, final): writes "
                 "out[0], but only the root, rank 0, has an output in a reduce");
}

TEST(Collectives, WrongRootOfAGatherAndOfAScatter) {
  Schedule s = gather(3, 1);
  s.root = 0;
  expect_refused(s, "writes out[1], but only the root, rank 0, has an output in a gather");
  s = scatter(3, 1);
  s.root = 0;
  expect_refused(s, "reads in[0], but only the root, rank 0, has an input in a scatter");
}

TEST(Collectives, ReadingAnOutputThatIsNotThere) {
  const Schedule s = schedule_of(kGather, 2, 0, [](Recorder& p, Rank r) {
    p.chunks(1, 2);
    p.lane(0);
    p.copy(in(0), out(r));
    if (r == 1) p.send(out(1), {{0, 0}});
    else p.recv({{1, 0}}, out(1));
  });
  expect_refused(s, "rank 1 lane 0 pc 0 (copy in[0], into out[1]): writes out[1], but only the root, rank 0");
}

TEST(Collectives, PeersBuffersThatAreNotThere) {
  auto text = [](Collective collective, auto move) {
    return schedule_of(collective, 2, 0, [move](Recorder& p, Rank r) {
      p.chunks(1, 1);
      p.lane(0);
      p.send_credit({{1 - r, 0}});
      p.recv_credit({{1 - r, 0}});
      move(p, r);
      p.send_credit({{1 - r, 1}});
      p.recv_credit({{1 - r, 1}});
    });
  };
  const auto pull = [](Recorder& p, Rank r) {
    if (r == 1) p.pull({{0, 2}}, in(0), out(0));
  };
  Schedule s = text(kBroadcast, pull);
  s.ranks[0].lanes[0].push_back({.verb = Verb::kCopy, .buffers = 0x10});  // in[0] into out[0], after rank 1 has read it
  expect_proven(s);
  s.root = 1;
  s.ranks[0].lanes[0].pop_back();
  expect_refused(s,
                 "rank 1 lane 0 pc 2 (recv_direct from {0}, into out[0]): reads in[0] of rank 0, but only the root, "
                 "rank 1, has an input in a broadcast");
  expect_refused(text(kReduce,
                      [](Recorder& p, Rank r) {
                        if (r == 0) p.direct().copy_send(in(0), out(0), {{1, 2}});
                      }),
                 "writes out[0] of rank 1, but only the root, rank 0, has an output in a reduce");
  s = text(kBroadcast, pull);
  s.ranks[1].port_sets[s.ranks[1].lanes[0][2].recv_set][0].peer = 7;
  expect_refused(s, "accesses buffers of rank 7, which is not a peer");
}

TEST(Collectives, ShapesMayNameBuffersOfOthers) {
  // Rank 1 forwards the sum: its message is as long as a chunk of `out`, which only the root has.
  const Schedule s = schedule_of(kScatter, 3, 0, [](Recorder& p, Rank r) {
    p.chunks(3, 1);
    p.lane(0);
    if (r == 0) {
      p.send(in(2), {{1, 0}});
      p.send(in(1), {{1, 0}});
      p.copy(in(0), out(0));
    } else if (r == 1) {
      p.recv_send({{0, 0}}, in(2), {{2, 0}});
      p.recv({{0, 0}}, out(0));
    } else {
      p.recv({{1, 0}}, out(0));
    }
  });
  expect_proven(s);
}

// --- values -------------------------------------------------------------------------------------------------------

TEST(Collectives, MissingPart) {
  Schedule s = gather(3, 1);
  s.ranks[1].lanes[0].erase(s.ranks[1].lanes[0].begin());  // the root leaves out its own
  expect_refused(s, "rank 1 ends with out[1] never written");
  s = all_to_all(3);
  s.ranks[2].lanes[0].erase(s.ranks[2].lanes[0].begin());
  expect_refused(s, "rank 2 ends with out[2] never written");
  s = scatter(3, 0);
  s.ranks[0].lanes[0].pop_back();
  expect_refused(s, "rank 0 ends with out[0] never written");
  s = broadcast(3, 0);
  s.ranks[0].lanes[0].pop_back();
  expect_refused(s, "rank 0 ends with out[0] never written");
}

TEST(Collectives, WrongPart) {
  Schedule s = all_to_all(3);
  s.ranks[0].lanes[0][1].src_first = 2;  // rank 1 gets rank 2's data
  expect_refused(s, "rank 1 ends with out[0] holding rank 0's in[2] instead of rank 0's in[1]");
  s = all_to_all(3);
  std::swap(s.ranks[1].lanes[0][2].dst_first, s.ranks[1].lanes[0][4].dst_first);  // swaps two senders
  expect_refused(s, "rank 1 ends with out[0] holding rank 2's in[1] instead of rank 0's in[1]");
  s = gather(3, 0);
  s.ranks[0].lanes[0][1].dst_first = 2;
  expect_refused(s, "rank 0 ends with out[1] never written");
  s = scatter(3, 0);
  s.ranks[0].lanes[0][0].src_first = 2;
  expect_refused(s, "rank 1 ends with out[0] holding rank 0's in[2] instead of rank 0's in[1]");
}

TEST(Collectives, MissingContribution) {
  Schedule s = reduce(4, 1);  // 2 -> 3 -> 0 -> 1
  s.ranks[3].lanes[0][0].verb = Verb::kRecvSend;
  expect_refused(s, "calls a sum final that is not complete");
  s.ranks[1].lanes[0][0].flags = 0;
  expect_refused(s, "rank 1 ends with out[0] lacking the contributions of ranks {3}");
}

TEST(Collectives, NothingIsAddedWhereNothingIsSummed) {
  const Schedule s = schedule_of(kAllToAll, 2, 0, [](Recorder& p, Rank r) {
    p.chunks(2, 2);
    p.lane(0);
    p.send(in(1 - r), {{1 - r, 0}});
    p.recv_reduce_copy({{1 - r, 0}}, in(r), out(r), kOwnFirst, Sum::kPartial);
  });
  expect_refused(s, "adds where nothing is summed", kValues);
}

// --- barrier ------------------------------------------------------------------------------------------------------

TEST(Collectives, BarrierThatLetsSomebodyLeaveEarly) {
  for (int n : {5, 70}) {
    Schedule s = schedule_of(kBarrier, n, 0, [=](Recorder& p, Rank r) {  // one round too few
      p.lane(0);
      for (int hops = 1; 2 * hops < n; hops *= 2) {
        p.send_credit({{(r + hops) % n, 0}});
        p.recv_credit({{(r + n - hops) % n, 0}});
      }
    });
    expect_refused(s, "rank 0 may leave the barrier before rank 1 has come",
                   n > 64 ? CheckOptions::fingerprints() : CheckOptions{});
  }
  Schedule central = schedule_of(kBarrier, 3, 0, [](Recorder& p, Rank r) {  // rank 0 counts the others
    p.lane(0);
    if (r == 0) {
      p.recv_credit({{1, 0}, {2, 0}});
      p.send_credit({{1, 1}, {2, 1}});
    } else {
      p.send_credit({{0, 0}});
      p.recv_credit({{0, 1}});
    }
  });
  expect_proven(central);
  std::swap(central.ranks[0].lanes[0][0], central.ranks[0].lanes[0][1]);  // lets them go first, then counts
  expect_refused(central, "rank 1 may leave the barrier before rank 2 has come");
}

TEST(Collectives, BarrierOverLanes) {
  // The answering lane knows that the others have come only if it waits for the receiving lane.
  auto text = [](bool waits) {
    return schedule_of(kBarrier, 3, 0, [waits](Recorder& p, Rank r) {
      p.lane(0);
      if (r != 0) {
        p.send_credit({{0, 0}});
        return p.recv_credit({{0, 1}});
      }
      p.recv_credit({{1, 0}, {2, 0}});
      p.lane(1);
      if (waits) p.wait(0, 0);
      p.send_credit({{1, 1}, {2, 1}});
    });
  };
  expect_proven(text(true));
  expect_refused(text(false), "rank 1 may leave the barrier before rank 2 has come");
}

TEST(Collectives, BarriersHaveNoData) {
  const Schedule s = schedule_of(kBarrier, 2, 0, [](Recorder& p, Rank r) {
    p.lane(0);
    p.send(in(0), {{1 - r, 0}});
    p.recv({{1 - r, 0}}, out(0));
  });
  expect_refused(s, "moves chunks in a barrier, which has none");
}

// --- in place -----------------------------------------------------------------------------------------------------

TEST(Collectives, InPlaceHazardOfABroadcast) {
  const Schedule s =
      schedule_of(kBroadcast, 2, 0, [](Recorder& p, Rank r) {  // rank 0 sends data that it may have overwritten
        p.chunks(2, 2);
        p.lane(0);
        if (r == 1) return p.recv({{0, 0}}, out(0, 2));
        p.copy(in(1), out(0));
        p.send(in(0), {{1, 0}});
        p.send(in(1), {{1, 0}});
        p.copy(in(0), out(0));
        p.copy(in(1), out(1));
      });
  CheckOptions equal;
  equal.ragged = false;
  expect_refused(s, "rank 0 lane 0 pc 1 (send in[0], to {1}): reads in[0] of rank 0, which in-place calls have", equal);
  EXPECT_TRUE(check_schedule(s, kValues).ok);
}

TEST(Collectives, InPlaceHazardOfAGather) {
  // in == out + root * count on the root: data for another part must not pass through the root's own part.
  const Schedule s = schedule_of(kGather, 3, 1, [](Recorder& p, Rank r) {
    p.chunks(1, 3);
    p.lane(0);
    if (r != 1) return p.send(in(0), {{1, 0}});
    p.recv({{0, 0}}, out(1));
    p.copy(out(1), out(0));
    p.recv({{2, 0}}, out(2));
    p.copy(in(0), out(1));
  });
  expect_refused(s,
                 "rank 1 lane 0 pc 3 (copy in[0], into out[1]): reads in[0] of rank 1, which in-place calls have "
                 "overwritten by then");
  EXPECT_TRUE(check_schedule(s, kValues).ok);
}

TEST(Collectives, InPlaceHazardOfAScatter) {
  // out == in + root * count on the root: its own part must not be overwritten before it is read.
  const Schedule s = schedule_of(kScatter, 3, 1, [](Recorder& p, Rank r) {
    p.chunks(3, 1);
    p.lane(0);
    if (r != 1) return p.recv({{1, 0}}, out(0));
    p.copy(in(0), out(0));  // uses its output as a buffer
    p.send(out(0), {{0, 0}});
    p.send(in(2), {{2, 0}});
    p.copy(in(1), out(0));
  });
  expect_refused(s, "rank 1 lane 0 pc 3 (copy in[1], into out[0]): reads in[1] of rank 1, which in-place calls have");
  EXPECT_TRUE(check_schedule(s, kValues).ok);
}

TEST(Collectives, InPlaceHazardOfAReduce) {
  const Schedule s = schedule_of(kReduce, 3, 0, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    if (r != 0) return p.send(in(0), {{0, 0}});
    p.recv({{1, 0}}, out(0));
    p.recv_reduce_copy({{2, 0}}, out(0), out(0), kOwnFirst, Sum::kPartial);
    p.lane(1);
    p.wait(0, 1);
    p.copy(in(0), out(0));
  });
  expect_refused(s, "in-place calls have overwritten by then");
}

TEST(Collectives, AllToAllIsNeverInPlace) {
  // All data arrives before any is sent. That is correct, because the buffers are different memory.
  const Schedule s = schedule_of(kAllToAll, 2, 0, [](Recorder& p, Rank r) {
    p.chunks(2, 2);
    p.lane(0);
    p.send(in(1 - r), {{1 - r, 0}});
    p.lane(1);
    p.recv({{1 - r, 0}}, out(1 - r));
    p.copy(in(r), out(r));
  });
  expect_proven(s);
}

// --- rows ---------------------------------------------------------------------------------------------------------

void record_chain(Recorder& p, Rank rank, int nranks, Rank root) {  // 0 -> 1 -> 2 ..., for any root
  p.chunks(1, 1);
  p.lane(0);
  if (rank == root && root > 0) p.send(in(0), {{root - 1, 0}});
  if (rank == root && root < nranks - 1) p.send(in(0), {{root + 1, 0}});
  if (rank == root) return p.copy(in(0), out(0));
  const Rank from = rank < root ? rank + 1 : rank - 1, to = rank < root ? rank - 1 : rank + 1;
  if (to < 0 || to == nranks) p.recv({{from, 0}}, out(0));
  else p.recv_copy_send({{from, 0}}, out(0), {{to, 0}});
}

Cost chain_cost(int n) {
  if (n == 1) return {0, 0, 1};
  return {n - 1, n > 2 ? 2 : 1, 1};  // the ends have the longest path, the others the most to send
}

TEST(Collectives, CostIsThatOfTheMostExpensiveRoot) {
  Algorithm row{"chain", kBroadcast, "", record_chain, chain_cost, false, true};
  for (int n = 1; n <= 20; ++n) {
    const CheckReport report = check_roots(row, n);
    EXPECT_TRUE(report.ok) << n << " ranks: " << report.reason;
    EXPECT_EQ(report.steps, n - 1);
  }
  EXPECT_EQ(check_algorithm(row, 5, {}, 2).steps, 2);
  row.cost = [](int n) { return Cost{n, 2, 1}; };
  EXPECT_EQ(check_roots(row, 5).reason, "no root takes 5 steps and sends 2/1 S as claimed: at most 4 and 2/1 S");
  row.cost = [](int n) { return Cost{n - 1, 1, 1}; };
  EXPECT_EQ(check_roots(row, 5).reason, "root 1: sends 2/1 S from its busiest rank where 1/1 are claimed");
}

TEST(Collectives, RootsThatAreProven) {
  EXPECT_EQ(roots_to_prove(kAllReduce, 9), std::vector<Rank>{0});
  EXPECT_EQ(roots_to_prove(kBroadcast, 3), (std::vector<Rank>{0, 1, 2}));
  EXPECT_EQ(roots_to_prove(kScatter, 16).size(), 16u);
  EXPECT_EQ(roots_to_prove(kGather, 64), (std::vector<Rank>{0, 1, 32, 62, 63}));
}

}  // namespace
}  // namespace rondo
