// `rondo diagnose` on hand-made flight records: it distinguishes all causes.
// labels: unit
#include "diagnose.h"

#include <gtest/gtest.h>

#include <set>

#include "trace/flight_record.h"

namespace rondo::tools {
namespace {

FlightOperation posted(uint64_t sequence, uint64_t count, bool finished) {
  FlightOperation o;
  o.posted = {{Collective::kAllReduce, Dtype::kFloat32, Op::kSum, 0, count}, sequence, 0, 1000, finished ? 2000u : 0u};
  o.algorithm = "ring";
  o.finished = finished;
  return o;
}

// Rank `rank` of four, which has finished #6 and sees that the others have, too.
FlightRecord idle(int32_t rank) {
  FlightRecord r;
  r.identity = {0xc0ffee, rank, 4};
  r.pid = 100 + rank;
  r.host = "node7 1234";
  r.trigger = "error";
  r.time = {5'000'002'000, 5'000'002'000, 0};  // a tick is a nanosecond
  r.last_posted = r.last_finished = 6;
  r.operations = {posted(6, 10, true)};
  for (int32_t p = 0; p < 4; ++p)
    if (p != rank) r.peers.push_back({p, 100 + p, "running", 6, 6, {posted(6, 10, true)}, false});
  return r;
}

// It waits in #7 for data from `from`. The others have called it too.
FlightRecord waiting(int32_t rank, std::vector<int32_t> from, uint64_t count = 1000) {
  FlightRecord r = idle(rank);
  r.last_posted = 7;
  r.operations.insert(r.operations.begin(), posted(7, count, false));
  FlightCurrent c;
  c.operation = posted(7, count, false);
  c.protocol = "simple";
  c.started = true;
  c.waited_ns = 2'000'000'000;
  c.lanes = {{0, 5, 5, 1, 1, Verb::kSend, FlightLane::State::kDone, {}},
             {1, 3, 6, 0, 4, Verb::kRecvReduceSend, FlightLane::State::kData, std::move(from)}};
  r.current = {c};
  r.status = Status(StatusCode::kTimeout, "rank " + std::to_string(rank) + ": operation #7 waited 2.0 s");
  for (FlightPeer& p : r.peers) {
    p.last_posted = 7;
    p.operations.insert(p.operations.begin(), posted(7, count, false));
  }
  return r;
}

void see(FlightRecord& r, int32_t peer, const FlightPeer& what) {
  for (FlightPeer& p : r.peers)
    if (p.rank == peer) {
      p = what;
      p.rank = peer;
    }
}

std::vector<CommunicatorView> views(const std::vector<FlightRecord>& records) {
  std::vector<std::string> texts, problems;
  for (const FlightRecord& r : records) texts.push_back(to_json(r));
  auto merged = merge_flight_records(texts, &problems);
  for (const std::string& p : problems) ADD_FAILURE() << p;
  return merged;
}

Finding only_finding(const std::vector<FlightRecord>& records) {
  const auto comms = views(records);
  EXPECT_EQ(comms.size(), 1u);
  const std::vector<Finding> found = find_causes(comms[0]);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? Finding{} : found[0];
}

TEST(Diagnose, NobodyWaits) { EXPECT_TRUE(find_causes(views({idle(0), idle(1), idle(2), idle(3)})[0]).empty()); }

TEST(Diagnose, ARankThatHasNotCalledIsNamedWithWhatItDidLast) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(3, {2})};
  for (FlightRecord& r : records) see(r, 2, {2, 102, "running", 6, 6, {posted(6, 10, true)}, false});
  const Finding f = only_finding(records);  // it left no record, because it never waited
  EXPECT_EQ(f.cause, Cause::kMissingCall);
  EXPECT_EQ(f.culprits, std::vector<int>{2});
  EXPECT_NE(
      f.text.find("rank 2 (pid 102) has not called #7, all_reduce of 1000 float sum, in which ranks 0, 1, 3 wait"),
      std::string::npos)
      << f.text;
  EXPECT_NE(f.text.find("its last is #6, all_reduce of 10 float sum (ring), finished 5.0 s before"), std::string::npos)
      << f.text;
  records.push_back(idle(2));  // with its own record, the same
  EXPECT_EQ(only_finding(records).culprits, std::vector<int>{2});
}

TEST(Diagnose, TheFewerOfThoseWhoDisagreeAreNamed) {
  const Finding f = only_finding({waiting(0, {3}), waiting(1, {0}, 999), waiting(2, {1}), waiting(3, {2})});
  EXPECT_EQ(f.cause, Cause::kDifferentCall);
  EXPECT_EQ(f.culprits, std::vector<int>{1});
  EXPECT_NE(f.text.find("rank 1 calls all_reduce of 999 float sum"), std::string::npos) << f.text;
  EXPECT_NE(f.text.find("ranks 0, 2, 3 call all_reduce of 1000 float sum"), std::string::npos) << f.text;
}

TEST(Diagnose, ADeadRankComesBeforeItsConsequences) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(3, {2})};
  see(records[1], 2, {2, 102, "gone", 7, 6, {posted(7, 1000, false)}, false});
  Finding f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kDead);
  EXPECT_EQ(f.culprits, std::vector<int>{2});
  see(records[1], 2, {2, 102, "unknown", 7, 6, {}, false});
  records[0].lost_rank = 2;
  records[0].lost_how = "its socket was closed";
  f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kDead);
  EXPECT_NE(f.text.find("its socket was closed"), std::string::npos) << f.text;
}

TEST(Diagnose, AStoppedRank) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(3, {2})};
  for (FlightRecord& r : records) see(r, 2, {2, 102, "stopped", 7, 6, {posted(7, 1000, false)}, false});
  const Finding f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kStopped);
  EXPECT_EQ(f.culprits, std::vector<int>{2});
}

TEST(Diagnose, ARankThatLeft) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(3, {2})};
  for (FlightRecord& r : records) see(r, 2, {2, 102, "gone", 6, 6, {posted(6, 10, true)}, true});
  const Finding f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kDeparted);
  EXPECT_EQ(f.culprits, std::vector<int>{2});
}

TEST(Diagnose, AnAbort) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(2, {1}), waiting(3, {2})};
  for (FlightRecord& r : records) r.aborted_by = 1;
  EXPECT_EQ(only_finding(records).cause, Cause::kAborted);
}

TEST(Diagnose, ACycleIsToldInItsOrder) {
  const std::vector<FlightRecord> ring = {waiting(0, {3}), waiting(1, {0}), waiting(2, {1}), waiting(3, {2})};
  const Finding f = only_finding(ring);
  EXPECT_EQ(f.cause, Cause::kCycle);
  EXPECT_EQ(f.culprits, (std::vector<int>{0, 3, 2, 1}));
  EXPECT_NE(f.text.find("rank 0 waits for data from rank 3 in step 3 of 6 of lane 1 (recv_reduce_send)"),
            std::string::npos)
      << f.text;
}

TEST(Diagnose, WhoHasWaitedAMomentOnlyIsNoCycle) {
  std::vector<FlightRecord> ring = {waiting(0, {3}), waiting(1, {0}), waiting(2, {1}), waiting(3, {2})};
  for (FlightRecord& r : ring) r.current[0].waited_ns = 1'000'000;
  EXPECT_EQ(only_finding(ring).cause, Cause::kUnknown);
}

// 2^38 paths lead from rank 0 to rank 39, and none of them back.
TEST(Diagnose, ManyWhoWaitForManyAreToldAtOnce) {
  constexpr int32_t kRanks = 40;
  std::vector<FlightRecord> records;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    std::vector<int32_t> later;
    for (int32_t other = rank + 1; other < kRanks; ++other) later.push_back(other);
    FlightRecord r = waiting(rank, later);
    r.identity.nranks = kRanks;
    r.peers.clear();
    if (later.empty()) r.current[0].lanes[1].state = FlightLane::State::kReady;
    records.push_back(r);
  }
  const Finding f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kStuck);
  EXPECT_EQ(f.culprits, std::vector<int>{kRanks - 1});
}

TEST(Diagnose, TheEndOfAChainIsStuck) {
  std::vector<FlightRecord> records = {waiting(0, {3}), waiting(1, {0}), waiting(2, {}), waiting(3, {2})};
  records[2].current[0].lanes[1].state = FlightLane::State::kReady;
  const Finding f = only_finding(records);
  EXPECT_EQ(f.cause, Cause::kStuck);
  EXPECT_EQ(f.culprits, std::vector<int>{2});
  EXPECT_NE(f.text.find("rank 3 waits for data from rank 2"), std::string::npos) << f.text;
}

TEST(Diagnose, CommunicatorsCalledInDifferentOrders) {
  // Process 100 is rank 0 of both and waits in the first; process 101 is rank 1 of both and waits in the second.
  std::vector<FlightRecord> records;
  for (int32_t comm = 0; comm < 2; ++comm) {
    FlightRecord r = waiting(comm, {1 - comm});
    r.identity = {0xa0u + static_cast<uint64_t>(comm), comm, 2};
    r.peers = {{1 - comm, 100 + 1 - comm, "running", 6, 6, {}, false}};
    records.push_back(r);
  }
  const auto comms = views(records);
  ASSERT_EQ(comms.size(), 2u);
  const std::vector<Finding> found = find_cycles_between(comms);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].cause, Cause::kCycle);
  EXPECT_NE(found[0].text.find("whose process 101 waits in communicator a1"), std::string::npos) << found[0].text;
  EXPECT_NE(found[0].text.find("in the same order on all ranks"), std::string::npos) << found[0].text;
}

// Four processes with two communicators. The ranks of `first` wait in the first, the others in the second.
std::vector<CommunicatorView> two_communicators(const std::set<int32_t>& first, const std::set<int32_t>& second) {
  std::vector<FlightRecord> records;
  for (int32_t comm = 0; comm < 2; ++comm)
    for (int32_t rank = 0; rank < 4; ++rank) {
      const std::set<int32_t>& here = comm == 0 ? first : second;
      FlightRecord r = here.contains(rank) ? waiting(rank, {(rank + 3) % 4}) : idle(rank);
      r.identity.communicator = 0xa0u + static_cast<uint64_t>(comm);
      for (FlightPeer& p : r.peers)
        if (!here.contains(p.rank)) p = {p.rank, p.pid, "running", 6, 6, {posted(6, 10, true)}, false};
      records.push_back(r);
    }
  return views(records);
}

TEST(Diagnose, CommunicatorsInCrossedOrderAreOneVerdict) {
  const Verdict v = find_verdict(two_communicators({0, 1}, {2, 3}));
  ASSERT_EQ(v.between.size(), 1u);
  EXPECT_EQ(v.between[0].cause, Cause::kCycle);
  ASSERT_EQ(v.within.size(), 2u);
  for (const std::vector<Finding>& found : v.within)
    EXPECT_TRUE(found.empty()) << cause_name(found[0].cause) << ": " << found[0].text;
}

// Ranks 1 and 3 are late in the first communicator. Rank 3's process waits in the second for rank 1, which is idle.
TEST(Diagnose, ARankWhoseProcessWaitsElsewhereIsNoCause) {
  std::vector<CommunicatorView> comms = two_communicators({0, 2}, {0, 2, 3});
  for (CommunicatorView& c : comms)
    for (const int rank : {0, 2})
      if (c.id == comms[1].id) c.ranks[static_cast<size_t>(rank)].pid += 1000;  // other processes than in the first
  const Verdict chain = find_verdict(comms);
  EXPECT_TRUE(chain.between.empty());
  ASSERT_EQ(chain.within.size(), 2u);
  ASSERT_EQ(chain.within[0].size(), 1u) << "rank 3 waits elsewhere, rank 1 does not";
  EXPECT_EQ(chain.within[0][0].culprits, std::vector<int>{1});
  ASSERT_EQ(chain.within[1].size(), 1u);
  EXPECT_EQ(chain.within[1][0].culprits, std::vector<int>{1});
}

// Ranks that are threads share a process: its waiting elsewhere does not excuse a rank.
TEST(Diagnose, ALateThreadIsACause) {
  std::vector<CommunicatorView> comms = two_communicators({0, 1, 2}, {0, 1});
  for (CommunicatorView& c : comms)
    for (RankView& r : c.ranks) r.pid = 100;
  const Verdict v = find_verdict(comms);
  ASSERT_EQ(v.within.size(), 2u);
  ASSERT_EQ(v.within[0].size(), 1u);
  EXPECT_EQ(v.within[0][0].culprits, std::vector<int>{3});
}

TEST(Diagnose, NumbersThatAreNotWholeAreRefused) {
  std::string text = to_json(idle(0));
  const std::string rank = "\"rank\": 0";
  ASSERT_NE(text.find(rank), std::string::npos);
  text.replace(text.find(rank), rank.size(), "\"rank\": 1e99");
  std::vector<std::string> problems;
  EXPECT_TRUE(merge_flight_records({text}, &problems).empty());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("not whole: 1e+99"), std::string::npos) << problems[0];
}

TEST(Diagnose, DamagedRecordsAreNamedAndTheOthersUsed) {
  const std::string good = to_json(idle(0));
  std::vector<std::string> problems;
  const auto comms = merge_flight_records({good, good.substr(0, good.size() / 2), "{}", "[1]", ""}, &problems);
  EXPECT_EQ(problems.size(), 4u);
  ASSERT_EQ(comms.size(), 1u);
  EXPECT_TRUE(comms[0].ranks[0].has_record);
}

}  // namespace
}  // namespace rondo::tools
