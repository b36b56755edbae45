// Traces of real runs with four processes: the records show the ring as in textbooks, on one clock.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "rondo/trace.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "trace/chrome_validator.h"
#include "trace/export.h"
#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"
#include "trace/timeline.h"

namespace rondo::testing {
namespace {

constexpr int kNumRanks = 4;

// Four ranks trace one all-reduce of `algorithm`, after an untraced one.
std::vector<TraceFile> trace_all_reduce(const char* algorithm, uint64_t count_elems) {
  TemporaryFolder folder;
  spawn_processes(kNumRanks, [&](Communicator& comm) {
    CallOptions options;
    options.algorithm = algorithm;
    options.tag = 42;
    SimpleAllReduce before(comm, count_elems), call(comm, count_elems);
    ASSERT_TRUE(is_ok(before.start(comm, nullptr, &options)));
    ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 0})));
    ASSERT_TRUE(is_ok(call.start(comm, nullptr, &options)));
    ASSERT_TRUE(is_ok(trace_stop(comm)));
    EXPECT_EQ(call.judge(), "");
  });
  auto files = read_traces(folder.path());
  EXPECT_TRUE(files.ok()) << files.status().to_string();
  return files.ok() ? std::move(*files) : std::vector<TraceFile>();
}

void expect_valid_export(const std::vector<TraceFile>& files, uint64_t num_flows) {
  ExportReport report;
  const std::string text = text_of([&](std::FILE* out) {
    auto r = export_chrome(files, out);
    ASSERT_TRUE(r.ok());
    report = *r;
  });
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  for (const std::string& problem : ChromeValidator::check(json)) ADD_FAILURE() << problem;
  EXPECT_TRUE(report.one_clock);
  EXPECT_EQ(report.lost, 0u);
  EXPECT_EQ(report.flows, num_flows);
  EXPECT_EQ(report.unmatched_sends, 0u);
  EXPECT_EQ(report.unmatched_recvs, 0u);
}

// No message is received before its send began.
void expect_causality(const std::vector<TraceFile>& files) {
  const Timeline timeline(files);
  const MessageFlows messages = match_messages(files);
  for (const MessageFlow& m : messages.flows) {
    const StepRecord &send = files[m.send_file].records[m.send_record],
                     &recv = files[m.recv_file].records[m.recv_record];
    EXPECT_GE(timeline.ns(m.recv_file, recv.done_ticks()), timeline.ns(m.send_file, send.ready_ticks()));
    EXPECT_EQ(send.bytes(), recv.bytes());
    EXPECT_EQ(send.sequence, recv.sequence);
    EXPECT_EQ(send.loop, recv.loop);
  }
}

bool sends_data(const TraceFile& f, const StepRecord& r) {
  return r.kind == static_cast<uint64_t>(RecordKind::kStep) && !f.instruction(r)->send_peers.empty() && r.bytes() != 0;
}

class TracedRing : public ::testing::TestWithParam<uint64_t> {};

TEST_P(TracedRing, IsTheTextbooksRing) {
  const uint64_t count = GetParam(), total_bytes = count * sizeof(float);
  const std::vector<TraceFile> files = trace_all_reduce("ring", count);
  ASSERT_EQ(files.size(), static_cast<size_t>(kNumRanks));
  uint64_t all_sends = 0;
  for (const TraceFile& f : files) {
    const int rank = f.identity.rank;
    SCOPED_TRACE("rank " + std::to_string(rank));
    EXPECT_EQ(f.num_lost(), 0u);
    std::map<std::pair<uint64_t, uint64_t>, int> steps;  // by channel and loop
    uint64_t bytes_sent = 0;
    for (const StepRecord& r : f.records) {
      const TracedInstruction& i = *f.instruction(r);
      EXPECT_EQ(r.sequence, 2u);
      EXPECT_EQ(f.plans[r.plan].algorithm, "ring");
      for (const int32_t peer : i.send_peers) EXPECT_EQ(peer, (rank + 1) % kNumRanks);
      for (const int32_t peer : i.recv_peers) EXPECT_EQ(peer, (rank + kNumRanks - 1) % kNumRanks);
      if (!sends_data(f, r)) continue;
      steps[{r.channel, r.loop}] += 1;
      bytes_sent += r.bytes();
      ++all_sends;
    }
    EXPECT_EQ(steps.size(), f.plans[0].num_loops);
    for (const auto& [where, number] : steps) EXPECT_EQ(number, 2 * (kNumRanks - 1)) << "loop " << where.second;
    EXPECT_EQ(bytes_sent, 2 * (kNumRanks - 1) * total_bytes / kNumRanks);
  }
  expect_causality(files);
  expect_valid_export(files, all_sends);
}

// One line, several messages, many loops.
INSTANTIATE_TEST_SUITE_P(Sizes, TracedRing, ::testing::Values(8, 4096, 1 << 20));

TEST(TracedRun, MulticastLeadsToEveryReader) {
  const std::vector<TraceFile> files = trace_all_reduce("one_shot", 1000);
  ASSERT_EQ(files.size(), static_cast<size_t>(kNumRanks));
  uint64_t flows = 0;
  for (const TraceFile& f : files)
    for (const StepRecord& r : f.records)
      if (sends_data(f, r)) flows += f.instruction(r)->send_peers.size();
  EXPECT_GE(flows, static_cast<uint64_t>(kNumRanks * (kNumRanks - 1)));
  expect_causality(files);
  expect_valid_export(files, flows);
}

TEST(TracedRun, MessagesBetweenTwoRanks) {
  TemporaryFolder folder;
  spawn_processes(2, [&](Communicator& comm) {
    ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 0})));
    std::vector<float> data(100'000);
    for (int i = 0; i < 3; ++i) {
      const Status s = comm.rank() == 0 ? comm.send(data.data(), data.size(), Dtype::kFloat32, 1)
                                        : comm.recv(data.data(), data.size(), Dtype::kFloat32, 0);
      ASSERT_TRUE(is_ok(s));
    }
    ASSERT_TRUE(is_ok(trace_stop(comm)));
  });
  auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  uint64_t sends = 0, bytes = 0;
  for (const StepRecord& r : (*files)[0].records) {
    sends += 1;
    bytes += r.bytes();
  }
  EXPECT_EQ(bytes, 3 * 400'000u);
  expect_causality(*files);
  expect_valid_export(*files, sends);
}

TEST(TracedRun, TheEnvironmentSwitchesItAndARestartHasAFileOfItsOwn) {
  TemporaryFolder folder;
  setenv("RONDO_TRACE", folder.path().c_str(), 1);
  spawn_processes(2, [&](Communicator& comm) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(works(comm));
    ASSERT_TRUE(is_ok(trace_stop(comm)));
    EXPECT_TRUE(fails_with(trace_stop(comm), StatusCode::kInvalidArgument, {"not traced"}));
    ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 64})));
    EXPECT_TRUE(fails_with(trace_start(comm, {folder.path(), 0}), StatusCode::kInvalidArgument, {folder.path()}));
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(works(comm));
  });
  unsetenv("RONDO_TRACE");
  auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const TraceFile& f = (*files)[i];
    EXPECT_EQ(f.identity.rank, static_cast<int32_t>(i / 2));
    EXPECT_EQ(f.identity.communicator, (*files)[0].identity.communicator);
    EXPECT_NE(f.identity.communicator, 0u);
    if (i % 2 == 0) {
      EXPECT_GT(f.records.size(), 64u);
      EXPECT_EQ(f.num_lost(), 0u);
      EXPECT_EQ(f.records.front().sequence, 1u);
      EXPECT_EQ(f.records.back().sequence, 100u);
    } else {
      EXPECT_EQ(f.records.size(), 64u);
      EXPECT_GT(f.num_lost(), 0u);
      EXPECT_EQ(f.records.back().sequence, 200u);
    }
  }
}

TEST(TracedRun, AnErrorWritesTheTrace) {
  TemporaryFolder folder;
  Shared<SharedCounter> num_failed;
  SpawnOptions options;
  options.config.deadline_s = 1;
  spawn_processes(
      2,
      [&](Communicator& comm) {
        ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 0})));
        ASSERT_TRUE(works(comm));
        if (comm.rank() == 1) {
          EXPECT_TRUE(num_failed->wait_at_least(1, 30));
          return;
        }
        SimpleAllReduce call(comm, 1000);
        EXPECT_TRUE(fails_with(call.start(comm, nullptr), StatusCode::kTimeout, {"rank 1"}));
        auto files = read_traces(folder.path());  // written before the call returned
        EXPECT_TRUE(files.ok()) << files.status().to_string();
        const std::string why = files.ok() ? files->at(0).why : "";
        EXPECT_NE(why.find("rank 1 has not called it"), std::string::npos) << why;
        num_failed->add();
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
