// Errors of the checker: deadlocks, depth of FIFOs, races.
#include <gtest/gtest.h>

#include "schedule/checker.h"
#include "schedule/text_schedules.h"

namespace rondo {
namespace {

// --- deadlock and depth -------------------------------------------------------------------------------------------

TEST(CheckerOrder, DeadlockNamesTheBlockedRanks) {
  Schedule s = swap_and_add([](Rank r) { return own_after(r); });
  for (RankSchedule& r : s.ranks) std::swap(r.lanes[0][0], r.lanes[0][1]);
  expect_refused(s,
                 "deadlock with FIFOs of 1: rank 0 lane 0 pc 0 waits for a message from rank 1 (tag 0); "
                 "rank 1 lane 0 pc 0 waits for a message from rank 0 (tag 0)");
}

/// Rank 0 sends `early` messages that rank 1 reads after another one.
Schedule needs_depth(int early) {
  return schedule_of(Collective::kAllGather, 2, [early](Recorder& p, Rank r) {
    const int num = early + 1;
    p.chunks(num, 2 * num);
    p.lane(0);
    if (r == 0) {
      for (int k = 0; k < early; ++k) p.send(in(k), {{1, 0}});
      p.send(in(early), {{1, 1}});
      p.recv({{1, 0}}, out(num, num));
    } else {
      p.recv({{0, 1}}, out(early));
      for (int k = 0; k < early; ++k) p.recv({{0, 0}}, out(k));
      p.send(in(0, num), {{0, 0}});
    }
    p.copy(in(0, num), out(r * num, num));
  });
}

TEST(CheckerOrder, FindsTheSmallestDepth) {
  CheckOptions options;
  options.ragged = false;
  for (int early : {1, 2, 5}) {
    const CheckReport report = check_schedule(needs_depth(early), options);
    EXPECT_TRUE(report.ok) << report.reason;
    EXPECT_EQ(report.fifo_depth, early);
    EXPECT_EQ(report.fifo_depth_sliced, 4 * early);
  }
  options.max_fifo_depth = 4;
  expect_refused(needs_depth(5), "waits for space towards rank 1 (tag 0)", options);
}

TEST(CheckerOrder, RingNeedsOneSlotMoreThanMessagesPerChunk) {
  for (int slices = 1; slices <= 4; ++slices) {
    CheckOptions options;
    options.max_messages_per_chunk = slices;
    const CheckReport report = check_schedule(of("ring", Collective::kAllReduce, 8), options);
    EXPECT_TRUE(report.ok) << report.reason;
    EXPECT_EQ(report.fifo_depth_sliced, slices + 1);
  }
}

// --- races --------------------------------------------------------------------------------------------------------

TEST(CheckerOrder, OneShotInPlaceMustWaitForItsOwnSend) {  // regression: found in the first version of one_shot.h
  Schedule s = of("one_shot", Collective::kAllReduce, 2);
  std::erase_if(s.ranks[0].lanes[1], [](const Instruction& i) { return i.verb == Verb::kWait; });
  expect_refused(s, "writes out[0] of rank 0 without being ordered after rank 0 lane 0 pc 0");
}

TEST(CheckerOrder, InputOverwrittenInPlace) {
  const Schedule s = schedule_of(Collective::kAllReduce, 2, [](Recorder& p, Rank r) {
    p.chunks(1, 1);
    p.lane(0);
    if (r == 0) {
      p.recv_reduce_copy({{1, 0}}, in(0), out(0), kOwnFirst, Sum::kFinal);
      p.send(in(0), {{1, 0}});
    } else {
      p.send(in(0), {{0, 0}});
      p.recv_reduce_copy({{0, 0}}, in(0), out(0), own_after(1), Sum::kFinal);
    }
  });
  expect_refused(s, "rank 0 lane 0 pc 1 (send in[0], to {1}): reads in[0] of rank 0, which in-place calls have");
  EXPECT_TRUE(check_schedule(s, kValues).ok) << "out of place nothing is wrong with it";
}

TEST(CheckerOrder, LanesThatShareAChunkNeedAWait) {
  auto text = [](bool waits) {
    return schedule_of(Collective::kAllGather, 2, [waits](Recorder& p, Rank r) {
      p.chunks(1, 2);
      p.lane(0);
      p.copy(in(0), out(r));
      p.lane(1);
      if (waits) p.wait(0, 0);
      p.send(out(r), {{1 - r, 0}});
      p.lane(2);
      p.recv({{1 - r, 0}}, out(1 - r));
    });
  };
  EXPECT_TRUE(check_schedule(text(true)).ok) << check_schedule(text(true)).reason;
  expect_refused(text(false), "out[0]");
}

TEST(CheckerOrder, RaceIsFoundWhateverTheInterleavingDid) {
  // Lane 1 happens to run after lane 0 here, but nothing orders them.
  const Schedule s = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank) {
    p.chunks(1, 1, 1);
    p.lane(0);
    p.copy(in(0), scratch(0), Sum::kFinal);
    p.lane(1);
    p.copy(scratch(0), out(0));
  });
  expect_refused(s, "reads scratch[0] of rank 0 without being ordered after rank 0 lane 0 pc 0");
}

TEST(CheckerOrder, EveryLoopHasItsOwnScratch) {
  // Within a loop the wait orders the two. The next loop's write need not wait for this loop's read.
  const Schedule s = schedule_of(Collective::kAllReduce, 1, [](Recorder& p, Rank) {
    p.chunks(1, 1, 1);
    p.lane(0);
    p.copy(in(0), scratch(0), Sum::kFinal);
    p.lane(1);
    p.wait(0, 0);
    p.copy(scratch(0), out(0));
  });
  EXPECT_TRUE(check_schedule(s).ok) << check_schedule(s).reason;
}

TEST(CheckerOrder, DirectNeedsTheEntryCredit) {
  Schedule s = of("direct", Collective::kAllReduce, 3);
  std::swap(s.ranks[1].lanes[0][1], s.ranks[1].lanes[0][2]);  // works before the others have come
  expect_refused(s, "accesses in[1] of rank 0, which may not have begun the operation");
}

TEST(CheckerOrder, DirectNeedsTheExitCredit) {
  Schedule s = of("direct", Collective::kAllGather, 3);
  std::swap(s.ranks[1].lanes[0][2], s.ranks[1].lanes[0][3]);  // sends its exit credit first
  expect_refused(s, "accesses buffers of rank 0, whose operation may have ended by then");
}

}  // namespace
}  // namespace rondo
