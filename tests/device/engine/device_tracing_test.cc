// Traces and flight records of communicators of device memory: the kernels' records on the host's clock, as in any
// other trace. Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "device/engine/device_floats.h"
#include "rondo/trace.h"
#include "support/emulated_cuda.h"
#include "support/shared.h"
#include "support/spawn.h"
#include "trace/chrome_validator.h"
#include "trace/export.h"
#include "trace/read_trace.h"
#include "trace/synthetic_trace.h"

namespace rondo::testing {
namespace {

SpawnOptions traced_options(const std::string& settings) {
  SpawnOptions options;
  options.config = device_config("device_blocks = -6\ndevice_engine = interpreter\n" + settings);
  options.config.deadline_s = 30;
  return options;
}

bool is_step(const StepRecord& r) { return r.kind == static_cast<uint64_t>(RecordKind::kStep); }

nlohmann::json chrome(const std::vector<TraceFile>& files, ExportReport& report) {
  std::FILE* out = std::tmpfile();
  const auto made = export_chrome(files, out);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  report = *made;
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  return nlohmann::json::parse(text, nullptr, false);
}

// A ring among three ranks on one device and on three: every rank has 2 N - 1 instructions per loop and channel, every
// message has both ends, and all times are between the call and its end.
TEST(DeviceTracing, EveryInstructionAndMessageIsThere) {
  for (const int devices : {1, 3})
    for (const char* proto : {"simple", "ll"}) {
      SCOPED_TRACE(std::to_string(devices) + proto);
      constexpr int kRanks = 3, kCalls = 2;
      constexpr uint64_t kElems = 100'000;  // two channels, several loops of LL, and a ragged end
      TemporaryFolder folder;
      EmulatedCuda cuda(FakeMachine::uniform(devices));
      std::vector<uint64_t> before(kRanks), after(kRanks);
      spawn_threads(
          kRanks,
          [&](Communicator& comm) -> Status {
            use_device(comm);
            Floats a(comm, kElems);
            a.set_simple(comm.rank());
            Stream stream;
            const CallOptions options = stream.options();
            // The first call is not traced, but its messages count.
            RONDO_TRY(comm.all_reduce(a.data(), a.data(), kElems, Dtype::kFloat32, Op::kSum, &options));
            stream.wait();
            RONDO_TRY(comm.barrier(&options));
            stream.wait();
            RONDO_TRY(trace_start(comm, {folder.path(), 0}));
            before[static_cast<size_t>(comm.rank())] = ticks();
            for (int i = 0; i < kCalls; ++i) {
              a.set_simple(comm.rank());
              RONDO_TRY(comm.all_reduce(a.data(), a.data(), kElems, Dtype::kFloat32, Op::kSum, &options));
              stream.wait();
            }
            after[static_cast<size_t>(comm.rank())] = ticks();
            RONDO_TRY(trace_stop(comm));
            EXPECT_TRUE(a.holds_simple_sum(kRanks));
            return comm.error();
          },
          traced_options(std::string("algo = ring\nproto = ") + proto));
      EXPECT_EQ(cuda.fake().leaks(), "");
      const auto files = read_traces(folder.path());
      ASSERT_TRUE(files.ok()) << files.status().to_string();
      ASSERT_EQ(files->size(), static_cast<size_t>(kRanks));
      for (const TraceFile& f : *files) {
        SCOPED_TRACE(f.identity.rank);
        const auto rank = static_cast<size_t>(f.identity.rank);
        ASSERT_EQ(f.plans.size(), 1u);
        EXPECT_EQ(f.plans[0].algorithm, "ring");
        EXPECT_EQ(f.plans[0].protocol, proto);
        EXPECT_EQ(f.num_lost(), 0u);
        std::set<uint64_t> sequences, channels;
        std::map<std::tuple<uint64_t, uint64_t, uint64_t>, uint64_t> bytes;  // by sequence, lane, pc
        for (const StepRecord& r : f.records) {
          if (!is_step(r)) continue;
          sequences.insert(r.sequence);
          channels.insert(r.channel);
          bytes[{r.sequence, r.lane, r.pc}] += r.bytes();
          EXPECT_LT(r.loop, f.plans[0].num_loops);
          // Within the clocks' error: a reading takes some microseconds if threads outnumber processors.
          const double us = 1e-3 * ns_per_tick(f.start, f.end);
          EXPECT_GT(static_cast<double>(static_cast<int64_t>(r.begin_ticks - before[rank])) * us, -5000);
          EXPECT_LT(static_cast<double>(static_cast<int64_t>(r.done_ticks() - after[rank])) * us, 5000);
        }
        EXPECT_EQ(sequences, (std::set<uint64_t>{3, 4}));  // after one call and a barrier
        EXPECT_EQ(channels, (std::set<uint64_t>{0, 1}));
        // Each instruction moves one chunk.
        EXPECT_EQ(bytes.size(), static_cast<size_t>(kCalls * (2 * kRanks - 1)));
        for (const auto& [at, of] : bytes) EXPECT_NEAR(of / sizeof(float), kElems / kRanks, 1);
      }
      ExportReport report;
      const nlohmann::json trace = chrome(*files, report);
      EXPECT_EQ(ChromeValidator::check(trace), std::vector<std::string>{});
      EXPECT_EQ(report.unmatched_sends, 0u);
      EXPECT_EQ(report.unmatched_recvs, 0u);
      // 2 (N-1) messages per rank, loop and channel; the last loops of short chunks have fewer.
      EXPECT_GE(report.flows + report.backward, static_cast<uint64_t>(kCalls * kRanks * 2 * (kRanks - 1) * 2));
    }
}

// Fan-out and fan-in, credits, messages between two ranks, groups of several kernels: all can be exported.
TEST(DeviceTracing, AllKindsOfCallsAreValidTraces) {
  TemporaryFolder folder;
  EmulatedCuda cuda(FakeMachine::uniform(1));
  spawn_threads(
      4,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        const int n = comm.size(), rank = comm.rank();
        Floats a(comm, 900), out(comm, 3600);
        Stream stream;
        const CallOptions options = stream.options();
        RONDO_TRY(trace_start(comm, {folder.path(), 0}));
        a.set_simple(rank);
        RONDO_TRY(comm.barrier(&options));
        RONDO_TRY(comm.all_gather(a.data(), out.data(), 900, Dtype::kFloat32, &options));
        group_start();
        RONDO_TRY(comm.send(a.data(), 900, Dtype::kFloat32, (rank + 1) % n, &options));
        RONDO_TRY(comm.recv(out.data(), 900, Dtype::kFloat32, (rank + n - 1) % n, &options));
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), 900, Dtype::kFloat32, Op::kMax, &options));
        RONDO_TRY(group_end());
        CallOptions one = options;
        for (const char* name : {"one_shot", "tree", "two_shot", "direct"}) {
          one.algorithm = name;
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), 900, Dtype::kFloat32, Op::kMax, &one));
        }
        stream.wait();
        return trace_stop(comm);
      },
      traced_options(""));
  const auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ASSERT_EQ(files->size(), 4u);
  for (const TraceFile& f : *files) EXPECT_EQ(f.plans.size(), 9u);  // one per call, for send and recv one each
  ExportReport report;
  EXPECT_EQ(ChromeValidator::check(chrome(*files, report)), std::vector<std::string>{});
  EXPECT_EQ(report.unmatched_sends, 0u);
  EXPECT_EQ(report.unmatched_recvs, 0u);
  EXPECT_GT(report.flows + report.backward, 0u);
}

// Captured calls run with their graph and leave no records. Calls around them do.
TEST(DeviceTracing, CapturedCallsAreNotTraced) {
  TemporaryFolder folder;
  EmulatedCuda cuda(FakeMachine::uniform(2));
  spawn_threads(
      2,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        Floats a(comm, 100);
        Stream stream;
        const CallOptions options = stream.options();
        RONDO_TRY(trace_start(comm, {folder.path(), 0}));
        a.set_simple(comm.rank());
        cuda::Graph graph = nullptr;
        EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
        const Status captured = comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options);
        EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graph), 0);
        RONDO_TRY(captured);
        for (int i = 0; i < 3; ++i) EXPECT_EQ(cuda.fake().launch_graph(graph, stream.get()), 0);
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
        stream.wait();
        EXPECT_TRUE(a.holds_simple_sum(2, 8));
        EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
        return trace_stop(comm);
      },
      traced_options(""));
  const auto files = read_traces(folder.path());
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  for (const TraceFile& f : *files)
    for (const StepRecord& r : f.records) EXPECT_EQ(r.sequence, 2u);
}

// A missing rank: at the deadline the others write their running calls and the trace so far.
TEST(DeviceTracing, AFailureWritesWhatWasUnderWay) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    TemporaryFolder folder;
    setenv("RONDO_FLIGHT", folder.path().c_str(), 1);
    EmulatedCuda cuda(FakeMachine::uniform(2));
    SpawnOptions options;
    options.config = device_config(std::string("device_blocks = -3\ndevice_engine = ") + engine);
    options.config.deadline_s = 0.5;
    SharedCounter failed;
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          Floats a(comm, 100);
          Stream stream;
          CallOptions call = stream.options();
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &call));
          stream.wait();
          if (comm.rank() == 1) {
            EXPECT_TRUE(failed.wait_at_least(1, 20));
            return {};
          }
          Work work;
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &call, &work));
          EXPECT_FALSE(work.wait().ok());
          // It exists before the call's end is reported.
          std::string found;
          for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
            if (entry.path().filename().string().starts_with("rank-0-")) found = entry.path();
          std::ifstream file(found);
          const auto flight = nlohmann::json::parse(file, nullptr, false);
          EXPECT_FALSE(flight.is_discarded());
          if (!flight.is_discarded()) {
            EXPECT_EQ(flight["trigger"], "error");
            EXPECT_EQ(flight["current"].size(), 1u) << flight.dump(1);
            if (flight["current"].size() == 1) {
              EXPECT_EQ(flight["current"][0]["sequence"], 2);
              EXPECT_EQ(flight["current"][0]["protocol"], engine);
            }
          }
          failed.add();
          return {};
        },
        options);
    unsetenv("RONDO_FLIGHT");
  }
}

}  // namespace
}  // namespace rondo::testing
