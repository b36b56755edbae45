// The ring of records and its file: nothing is lost silently, and a damaged file is refused.
// labels: unit tsan
#include "trace/step_trace.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"
#include "trace/tick_scale.h"

namespace rondo::testing {
namespace {

std::unique_ptr<StepTrace> make_trace(uint64_t num_records, int32_t rank = 0) {
  auto trace = StepTrace::create({0xc0ffee, rank, 2}, num_records);
  EXPECT_TRUE(trace.ok()) << trace.status().to_string();
  return std::move(*trace);
}

TEST(StepTrace, KeepsTheNewestAndCountsWhatIsLost) {
  auto trace = make_trace(100);
  EXPECT_EQ(trace->capacity(), 128u);
  const uint16_t plan = trace->add_plan(exchange_plan(0));
  for (uint64_t i = 1; i <= 300; ++i) {
    LaneWait wait;
    StepRecord r{};
    r.sequence = i;
    r.plan = plan;
    trace->add(r, wait, ticks(), ticks());
  }
  EXPECT_EQ(trace->num_lost(), 172u);
  TemporaryFolder folder;
  const std::string path = trace_path(folder.path(), trace->identity(), 0);
  EXPECT_EQ(path, folder.path() + "/rank-0-comm-c0ffee.rtrace");
  ASSERT_TRUE(trace->write(path, "why").ok());
  auto file = read_trace(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->num_lost(), 172u);
  EXPECT_EQ(file->why, "why");
  ASSERT_EQ(file->records.size(), 128u);
  for (uint64_t i = 0; i < 128; ++i) EXPECT_EQ(file->records[i].sequence, 173 + i);
  EXPECT_EQ(file->plans[0], exchange_plan(0));
  EXPECT_GT(file->end.ticks, file->start.ticks);
}

TEST(StepTrace, WritesWhatAnUnfilledRingHolds) {
  auto trace = make_trace(64);
  TemporaryFolder folder;
  const std::string path = trace_path(folder.path() + "/made/below", trace->identity(), 2);
  ASSERT_TRUE(trace->write(path, "").ok());
  EXPECT_EQ(path, folder.path() + "/made/below/rank-0-comm-c0ffee.3.rtrace");
  auto file = read_trace(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_TRUE(file->records.empty());
  EXPECT_EQ(file->num_lost(), 0u);
}

TEST(StepTrace, WaitsAreSplitByReason) {
  auto trace = make_trace(64);
  LaneWait wait;
  wait.blocked(WaitReason::kData, ticks());
  const uint64_t begin = wait.begin_ticks;
  wait.blocked(WaitReason::kData, ticks());
  EXPECT_EQ(wait.since_ticks, begin);  // the same reason continues
  wait.blocked(WaitReason::kRoom, ticks());
  const uint64_t room_since = wait.since_ticks;
  wait.blocked(WaitReason::kData, ticks());
  const uint64_t data_since = wait.since_ticks;
  const uint64_t ready = ticks(), done = ready + 100;
  trace->add(StepRecord{}, wait, ready, done);
  TemporaryFolder folder;
  trace->add_plan(exchange_plan(0));
  ASSERT_TRUE(trace->write(folder.path() + "/t.rtrace", "").ok());
  auto file = read_trace(folder.path() + "/t.rtrace");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const StepRecord& r = file->records.at(0);
  EXPECT_EQ(r.begin_ticks, begin);
  EXPECT_EQ(r.wait_room_ticks, data_since - room_since);
  EXPECT_EQ(r.wait_data_ticks, room_since - begin + ready - data_since);
  EXPECT_EQ(r.wait_order_ticks, 0u);
  EXPECT_EQ(r.ready_ticks(), ready);
  EXPECT_EQ(r.done_ticks(), done);
  EXPECT_EQ(wait.reason, WaitReason::kNone);  // the next instruction starts with no wait
  EXPECT_EQ(wait.waited_ticks[static_cast<int>(WaitReason::kData)], 0u);
}

TEST(StepTrace, PlansBeyondTheNumbersShareTheLast) {
  auto trace = make_trace(64);
  TracedPlan small;
  for (uint32_t i = 0; i < StepTrace::kMaxPlans; ++i) EXPECT_EQ(trace->add_plan(small), i);
  EXPECT_EQ(trace->add_plan(exchange_plan(0)), StepTrace::kMaxPlans);
  EXPECT_EQ(trace->add_plan(exchange_plan(1)), StepTrace::kMaxPlans);
  LaneWait wait;
  StepRecord r{};
  r.plan = StepTrace::kMaxPlans;
  r.lane = 7;
  trace->add(r, wait, ticks(), ticks());
  TemporaryFolder folder;
  ASSERT_TRUE(trace->write(folder.path() + "/t.rtrace", "").ok());
  auto file = read_trace(folder.path() + "/t.rtrace");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->instruction(file->records.at(0)), nullptr);
  EXPECT_NE(file->plans.back().reason.find("65535"), std::string::npos);
}

TEST(StepTrace, SizesOutOfRangeAreRefused) {
  EXPECT_EQ(StepTrace::create({}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StepTrace::create({}, StepTrace::kMaxRecords + 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(TraceFile, MessageNumbersOfManyPorts) {
  TraceFile f = exchange_file(0);
  TracedInstruction& i = f.plans[0].lanes[0][0];
  for (int32_t r = 0; r < 20; ++r) i.recv.push_back({r, 0, 1, 0, false});
  i.send.push_back({0, 2, 1, 0, false});  // two sends: further ports are recv[1..19] and send[1]
  f.records.push_back(make_step(1, 0, 0, {1'000'000, 0, 0, 0, 10}));
  f.records[0].recv_step = 100;
  f.records[0].send_step = 200;
  for (uint32_t first = 0; first < 20; first += StepPorts::kPorts) {
    StepPorts ports{};
    ports.kind = static_cast<uint64_t>(RecordKind::kPorts);
    ports.first = first;
    ports.count = std::min(StepPorts::kPorts, 20 - first);
    for (uint32_t k = 0; k < ports.count; ++k) ports.steps[k] = 101 + first + k;
    f.records.push_back(std::bit_cast<StepRecord>(ports));
  }
  f.num_written = f.records.size();
  auto back = decode_trace(encode(f));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  for (uint32_t port = 0; port < 20; ++port) EXPECT_EQ(message_number(*back, 0, port), 100 + port) << port;
  EXPECT_EQ(message_number(*back, 0, 20), 200u);
  EXPECT_EQ(message_number(*back, 0, 21), 120u);
  EXPECT_EQ(message_number(*back, 0, 22), std::nullopt);
  back->records.pop_back();  // overwritten
  EXPECT_EQ(message_number(*back, 0, 12), 112u);
  EXPECT_EQ(message_number(*back, 0, 13), std::nullopt);
}

TraceFile sample_file() {
  TraceFile f = exchange_file(1);
  for (uint32_t m = 0; m < 5; ++m) f.records.push_back(make_step(1, m % 2, m, {1'000'100 + m, 5, 6, 7, 8}));
  f.num_written = 9;
  f.why = "deadline passed";
  f.spans = {{"compute", "forward", 1'000'100, 1'000'200}, {"compute", "", 1'000'300, 1'000'300}};
  return f;
}

TEST(TraceFile, CutOffAnywhereItIsRefused) {
  const std::string bytes = encode(sample_file());
  ASSERT_TRUE(decode_trace(bytes).ok());
  for (size_t n = 0; n < bytes.size(); ++n)
    ASSERT_EQ(decode_trace(std::string_view(bytes).substr(0, n)).status().code(), StatusCode::kInvalidArgument) << n;
  EXPECT_FALSE(decode_trace(bytes + "x").ok());
}

TEST(TraceFile, DamagedBytesNeverCrash) {
  const std::string bytes = encode(sample_file());
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    for (int k = 0; k < 1 + round % 4; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    auto file = decode_trace(damaged);
    refused += !file.ok();
    if (file.ok())
      for (const StepRecord& r : file->records)
        if (r.kind == static_cast<uint64_t>(RecordKind::kStep)) (void)file->instruction(r);
  }
  EXPECT_GT(refused, 1000);
}

TEST(TraceFile, SpansAreKeptAndThoseThatRunBackwardsRefused) {
  TraceFile f = sample_file();
  auto back = decode_trace(encode(f));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->spans, f.spans);
  f.spans[1].end = 5;
  EXPECT_NE(decode_trace(encode(f)).status().to_string().find("span"), std::string::npos);
}

TEST(StepTrace, KeepsTheNewestSpans) {
  auto trace = StepTrace::create({1, 0, 1}, 64);
  ASSERT_TRUE(trace.ok());
  for (uint64_t i = 0; i < StepTrace::kMaxSpans + 10; ++i) (*trace)->add_span({"t", "s", i, i + 1});
  (*trace)->add_span({"t", "backwards", 9, 8});
  TemporaryFolder folder;
  const std::string path = folder.path() + "/x.rtrace";
  ASSERT_TRUE((*trace)->write(path, "").ok());
  const auto file = read_trace(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->spans.size(), StepTrace::kMaxSpans);
  EXPECT_EQ(file->spans_lost, 10u);
  EXPECT_EQ(file->spans.front().begin, 10u);
  EXPECT_EQ(file->spans.back().begin, StepTrace::kMaxSpans + 9);
}

TEST(TraceFile, RecordsOfMissingPlansAndInstructionsAreRefused) {
  for (const auto& damage : {+[](StepRecord& r) { r.plan = 1; }, +[](StepRecord& r) { r.lane = 2; },
                             +[](StepRecord& r) { r.pc = 1; }, +[](StepRecord& r) { r.kind = 3; }}) {
    TraceFile f = sample_file();
    damage(f.records[2]);
    const Status s = decode_trace(encode(f)).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(s.to_string().find("record 2"), std::string::npos) << s.to_string();
  }
}

TEST(TraceFile, TypeRowsAndClocksThatCannotBeAreRefused) {  // regression: exports indexed a table by them
  const auto refusal = [](const TraceFile& f) { return decode_trace(encode(f)).status().to_string(); };
  TraceFile f = sample_file();
  f.plans[0].shape.row = kNumRows;
  EXPECT_NE(refusal(f).find("within its plans"), std::string::npos) << refusal(f);
  for (const auto& damage :
       {+[](TraceFile& t) { t.start.realtime_ns = INT64_MAX; }, +[](TraceFile& t) { t.end.monotonic_ns = -1; },
        +[](TraceFile& t) { t.clock_offset_ns = INT64_MIN; },
        +[](TraceFile& t) { t.clock_offset_ns = -(1LL << 61); }}) {
    f = sample_file();
    damage(f);
    EXPECT_NE(refusal(f).find("has an impossible clock"), std::string::npos) << refusal(f);
  }
}

TEST(TraceFile, AFolderWithoutTracesIsNamed) {
  TemporaryFolder folder;
  const Status s = read_traces(folder.path()).status();
  EXPECT_NE(s.to_string().find(folder.path()), std::string::npos);
  EXPECT_EQ(read_traces(folder.path() + "/nothing").status().code(), StatusCode::kSystem);
}

TEST(Clock, PairsLieOnALine) {
  const ClockPair a = read_clock_pair();
  while (clock_ns(CLOCK_MONOTONIC) < a.monotonic_ns + 2'000'000) continue;
  const ClockPair b = read_clock_pair();
  while (clock_ns(CLOCK_MONOTONIC) < b.monotonic_ns + 2'000'000) continue;
  const ClockPair c = read_clock_pair();
  const TickScale scale(a, c);
  EXPECT_GT(scale.ns_per_tick(), 0);
  EXPECT_EQ(scale.monotonic_ns(a.ticks), a.monotonic_ns);
  EXPECT_LT(scale.monotonic_ns(a.ticks - 1000), a.monotonic_ns);
  EXPECT_GT(scale.monotonic_ns(b.ticks), a.monotonic_ns);
  EXPECT_LT(scale.monotonic_ns(b.ticks), c.monotonic_ns);
}

}  // namespace
}  // namespace rondo::testing
