// Tracing with ranks as threads: arguments, asynchronous work, and no races when it is switched.
// labels: unit tsan
// timeout: 120
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "rondo/rondo.h"
#include "rondo/trace.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "trace/chrome_validator.h"
#include "trace/export.h"
#include "trace/flight_record.h"
#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"

namespace rondo::testing {
namespace {

TEST(Tracing, BadArgumentsAreNamed) {
  TemporaryFolder folder;
  spawn_threads(1, [&](Communicator& comm) {
    EXPECT_TRUE(fails_with(trace_start(comm, {"", 0}), StatusCode::kInvalidArgument, {"directory"}));
    EXPECT_TRUE(fails_with(trace_start(comm, {folder.path(), 1}), StatusCode::kInvalidArgument, {"num_records is 1"}));
    EXPECT_TRUE(fails_with(trace_start(comm, {"/proc/none/x", 0}), StatusCode::kSystem, {"/proc/none/x"}));
    EXPECT_TRUE(fails_with(write_flight_record(comm, "/proc/none/x"), StatusCode::kSystem, {"/proc/none/x"}));
    EXPECT_TRUE(works(comm));
  });
  rondo_comm* comm = nullptr;
  ASSERT_EQ(rondo_comm_init_all(&comm, 1, nullptr), RONDO_OK);
  EXPECT_EQ(rondo_trace_start(comm, nullptr, 0), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_trace_start(nullptr, "x", 0), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_trace_stop(comm), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_flight_record(comm, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_trace_span(comm, "track", "early", 1, 2), RONDO_OK) << "not traced: no effect";
  EXPECT_EQ(rondo_trace_start(comm, folder.path().c_str(), 0), RONDO_OK);
  const uint64_t begin = rondo_trace_clock();
  EXPECT_EQ(rondo_trace_span(comm, "track", "compute", begin, rondo_trace_clock()), RONDO_OK);
  EXPECT_EQ(rondo_trace_stop(comm), RONDO_OK);
  EXPECT_EQ(rondo_flight_record(comm, folder.path().c_str()), RONDO_OK);
  rondo_comm_destroy(comm);
  const auto traces = read_traces(folder.path());
  ASSERT_TRUE(is_ok(traces.status()));
  ASSERT_EQ(traces->size(), 1u);
  ASSERT_EQ(traces->front().spans.size(), 1u);
  EXPECT_EQ(traces->front().spans[0].name, "compute");
  EXPECT_EQ(traces->front().spans[0].begin, begin);
}

TEST(Tracing, EnvironmentIsCheckedWhenTheCommunicatorIsMade) {
  for (const char* value : {"/tmp/f,KILL", "/tmp/f,", ",USR1"}) {
    setenv("RONDO_FLIGHT", value, 1);
    EXPECT_TRUE(fails_with(Communicator::init_all(1).status(), StatusCode::kInvalidArgument, {"RONDO_FLIGHT", value}));
    unsetenv("RONDO_FLIGHT");
  }
}

// Sends and receives are counted separately, so both are number 1: the second must not begin in the first.
TEST(Tracing, AnOperationBeginsWhenItIsCalled) {
  TemporaryFolder folder;
  uint64_t called_ticks = 0;
  spawn_threads(2, [&](Communicator& comm) {
    uint64_t data = 0;
    ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 0})));
    if (comm.rank() == 0) {
      ASSERT_TRUE(is_ok(comm.send(&data, 1, Dtype::kUint64, 1)));
      called_ticks = ticks();
      ASSERT_TRUE(is_ok(comm.recv(&data, 1, Dtype::kUint64, 1)));
    } else {
      ASSERT_TRUE(is_ok(comm.recv(&data, 1, Dtype::kUint64, 0)));
      ASSERT_TRUE(is_ok(comm.send(&data, 1, Dtype::kUint64, 0)));
    }
    ASSERT_TRUE(is_ok(trace_stop(comm)));
  });
  auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->at(0).records.size(), 2u);
  EXPECT_LT(files->at(0).records[0].begin_ticks, called_ticks);
  EXPECT_GE(files->at(0).records[1].begin_ticks, called_ticks);
}

// Several concurrent operations take turns on connections, and a progress thread drives.
TEST(Tracing, AsynchronousWorkIsAValidTrace) {
  TemporaryFolder folder;
  spawn_threads(3, [&](Communicator& comm) {
    ASSERT_TRUE(is_ok(trace_start(comm, {folder.path(), 1 << 16})));
    std::vector<SimpleAllReduce> calls;
    for (uint64_t i = 0; i < 8; ++i) calls.emplace_back(comm, 1000 + 3000 * i);
    std::vector<Work> work(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(is_ok(calls[i].start(comm, &work[i])));
    for (size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(is_ok(work[i].wait()));
      EXPECT_EQ(calls[i].judge(), "");
    }
    ASSERT_TRUE(is_ok(trace_stop(comm)));
  });
  auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 3u);
  ExportReport report;
  const std::string text = text_of([&](std::FILE* out) { report = *export_chrome(*files, out); });
  for (const std::string& problem : ChromeValidator::check(nlohmann::json::parse(text, nullptr, false)))
    ADD_FAILURE() << problem;
  EXPECT_EQ(report.unmatched_sends + report.unmatched_recvs, 0u);
  EXPECT_GT(report.flows, 0u);
}

// Traces start and stop, and flight records are requested, while other threads are in operations.
TEST(Tracing, SwitchingAndLookingWhileOperationsRun) {
  constexpr int kCalls = kSanitized ? 150 : 1500;
  TemporaryFolder folder;
  spawn_threads(2, [&](Communicator& comm) {
    std::atomic<bool> stop{false};
    std::thread switcher([&] {
      while (!stop) {
        EXPECT_TRUE(is_ok(trace_start(comm, {folder.path(), 256})));
        EXPECT_TRUE(is_ok(write_flight_record(comm, folder.path())));
        EXPECT_TRUE(is_ok(trace_stop(comm)));
      }
    });
    for (int i = 0; i < kCalls; ++i) EXPECT_TRUE(works(comm, i % 2 == 0 ? 10 : 10000));
    stop = true;
    switcher.join();
  });
}

// finalize() also ends the queue, but writes no record of a failure.
TEST(FlightRecord, IsWrittenAfterFinalize) {
  TemporaryFolder folder;
  setenv("RONDO_FLIGHT", folder.path().c_str(), 1);
  auto comms = Communicator::init_all(1);
  unsetenv("RONDO_FLIGHT");
  ASSERT_TRUE(is_ok(comms.status()));
  ASSERT_TRUE(is_ok((*comms)[0]->finalize()));
  EXPECT_TRUE(is_ok(write_flight_record(*(*comms)[0], folder.path())));
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
}

TEST(FlightRecord, ThePageKeepsStartsAndFinishes) {
  TemporaryFolder folder;
  const int64_t before_ns = clock_ns(CLOCK_MONOTONIC);
  spawn_threads(2, [&](Communicator& comm) {
    for (int i = 0; i < 70; ++i) ASSERT_TRUE(works(comm));
    ASSERT_TRUE(is_ok(write_flight_record(comm, folder.path())));
  });
  int records = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::FILE* f = std::fopen(entry.path().c_str(), "r");
    const auto json = nlohmann::json::parse(f, nullptr, false);
    std::fclose(f);
    ASSERT_TRUE(json.is_object()) << entry.path();
    ++records;
    EXPECT_EQ(json["last_finished"], 70);
    EXPECT_EQ(json["operations"].size(), StatusPage::kRecords);
    int64_t later = json["monotonic_ns"];
    for (const auto& o : json["operations"]) {  // the newest first
      EXPECT_TRUE(o["finished"]);
      EXPECT_LE(o["started_ns"], later);
      EXPECT_GE(o["started_ns"], before_ns - 1'000'000);  // a tick has the right length
      EXPECT_LE(o["started_ns"], o["finished_ns"]);
      later = o["started_ns"];
    }
    EXPECT_EQ(json["peers"].size(), 1u);
    EXPECT_EQ(json["peers"][0]["process"], "running");
  }
  EXPECT_EQ(records, 2);
}

}  // namespace
}  // namespace rondo::testing
