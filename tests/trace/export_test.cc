// Exports of hand-made traces: valid formats, times and flows in the right places.
// labels: unit
#include "trace/export.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/json_text.h"
#include "trace/chrome_validator.h"
#include "trace/synthetic_trace.h"
#include "trace/timeline.h"

namespace rondo::testing {
namespace {

using Json = nlohmann::json;

// Rank 0 sends at 100 ns, rank 1 waits for it from 50 ns on; later the other way round.
std::vector<TraceFile> exchange() {
  std::vector<TraceFile> files = {exchange_file(0), exchange_file(1)};
  files[0].records = {make_step(1, 0, 0, {1'000'200, 0, 0, 0, 100}), make_step(1, 0, 1, {1'000'400, 0, 60, 0, 100}),
                      make_step(1, 1, 0, {1'000'100, 1000, 0, 0, 40})};
  files[1].records = {make_step(1, 1, 0, {1'000'100, 200, 0, 20, 60}), make_step(1, 1, 1, {1'000'400, 300, 0, 0, 60}),
                      make_step(1, 0, 0, {1'000'900, 0, 0, 0, 100})};
  for (TraceFile& f : files) f.num_written = f.records.size();
  return files;
}

Json chrome(const std::vector<TraceFile>& files, ExportReport* report = nullptr) {
  const std::string text = text_of([&](std::FILE* out) {
    auto r = export_chrome(files, out);
    ASSERT_TRUE(r.ok());
    if (report != nullptr) *report = *r;
  });
  Json json = Json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return json;
}

std::string joined(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& p : problems) text += p + "\n";
  return text;
}

Json find_event(const Json& trace, const std::string& key, const std::string& name, int64_t pid) {
  for (const Json& e : trace["traceEvents"])
    if (e["ph"] == key && e["name"] == name && e["pid"] == pid) return e;
  return {};
}

TEST(ChromeTrace, TimesWaitsAndFlowsOfAnExchange) {
  ExportReport report;
  const Json trace = chrome(exchange(), &report);
  EXPECT_EQ(joined(ChromeValidator::check(trace)), "");
  EXPECT_EQ(report.steps, 6u);
  EXPECT_EQ(report.flows, 3u);
  EXPECT_EQ(report.unmatched_sends + report.unmatched_recvs, 0u);
  EXPECT_TRUE(report.one_clock);

  const Json wait = find_event(trace, "X", "wait for data (rank 0)", 2);
  EXPECT_EQ(wait["ts"], 0.060);  // after its wait for order: tick 100 + 20, half a nanosecond each
  EXPECT_EQ(wait["dur"], 0.100);
  EXPECT_EQ(find_event(trace, "X", "wait for order", 2)["ts"], 0.050);
  const Json work = find_event(trace, "X", "recv_reduce_copy", 2);
  EXPECT_EQ(work["ts"], 0.160);
  EXPECT_EQ(work["dur"], 0.030);
  EXPECT_EQ(work["args"]["bytes"], 2000);
  EXPECT_EQ(work["args"]["recv_peers"], Json::array({0}));
  EXPECT_EQ(work["args"]["dst"], "out[1]");
  EXPECT_EQ(work["args"]["wait_data_us"], 0.1);
  EXPECT_EQ(find_event(trace, "X", "wait for room (rank 1)", 1)["dur"], 0.030);
  const Json operation = find_event(trace, "X", "#1 all_reduce of 1000 float sum", 1);
  EXPECT_EQ(operation["args"]["reason"], "the \"only\" one");
  EXPECT_EQ(operation["args"]["algorithm"], "exchange");
}

// Rows by name. Overlapping spans of one name get another row.
TEST(ChromeTrace, SpansOfTheCallerHaveRowsOfTheirOwn) {
  std::vector<TraceFile> files = exchange();
  files[0].spans = {{"waits", "gather b", 1'000'300, 1'000'400},
                    {"compute", "outer", 1'000'000, 1'000'900},
                    {"compute", "inner", 1'000'100, 1'000'200},
                    {"waits", "gather a", 1'000'100, 1'000'300}};
  const Json trace = chrome(files);
  EXPECT_EQ(joined(ChromeValidator::check(trace)), "");
  const Json outer = find_event(trace, "X", "outer", 1), inner = find_event(trace, "X", "inner", 1);
  EXPECT_EQ(outer["cat"], "span");
  EXPECT_EQ(outer["dur"], 0.450);
  EXPECT_NE(outer["tid"], inner["tid"]);
  EXPECT_EQ(find_event(trace, "X", "gather a", 1)["tid"], find_event(trace, "X", "gather b", 1)["tid"]);
  int rows = 0;
  for (const Json& e : trace["traceEvents"])
    rows += e["name"] == "thread_name" && (e["args"]["name"] == "waits" || e["args"]["name"] == "compute (2)");
  EXPECT_EQ(rows, 2);
  const std::string lines = text_of([&](std::FILE* out) { ASSERT_TRUE(export_json_lines(files, out).ok()); });
  EXPECT_NE(lines.find("\"type\":\"span\""), std::string::npos);
  EXPECT_NE(lines.find("\"name\":\"inner\""), std::string::npos);
}

TEST(ChromeTrace, OperationsUnderWayAtOnceGetTracksOfTheirOwn) {
  std::vector<TraceFile> files = exchange();
  for (TraceFile& f : files) {
    const std::vector<StepRecord> once = f.records;
    for (StepRecord r : once) {
      r.sequence = 2;
      r.begin_ticks += 10;
      r.send_step += 10;
      r.recv_step += 10;
      f.records.push_back(r);
    }
    f.num_written = f.records.size();
  }
  ExportReport report;
  const Json trace = chrome(files, &report);
  EXPECT_EQ(joined(ChromeValidator::check(trace)), "");
  EXPECT_EQ(report.flows, 6u);
}

TEST(ChromeTrace, LostRecordsAndMissingFilesAreCounted) {
  std::vector<TraceFile> files = exchange();
  files[0].records.erase(files[0].records.begin());
  files.erase(files.begin() + 1);
  ExportReport report;
  const Json trace = chrome(files, &report);
  EXPECT_EQ(joined(ChromeValidator::check(trace)), "");
  EXPECT_EQ(report.lost, 1u);
  EXPECT_EQ(report.flows, 0u);
  EXPECT_EQ(report.unmatched_sends, 1u);
  EXPECT_EQ(report.unmatched_recvs, 1u);
  EXPECT_EQ(trace["otherData"]["records_lost"], 1);
}

TEST(ChromeTrace, MulticastHasAFlowToEachReader) {
  std::vector<TraceFile> files;
  for (int32_t rank = 0; rank < 3; ++rank) {
    TraceFile f = exchange_file(0);
    f.identity = {1, rank, 3};
    TracedInstruction& i = f.plans[0].lanes[0][0];
    i = {};
    i.verb = rank == 0 ? Verb::kSend : Verb::kRecv;
    (rank == 0 ? i.send : i.recv) = {{0, -1, 1, 1, false}};
    (rank == 0 ? i.send_peers : i.recv_peers) = rank == 0 ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{0};
    f.records = {make_step(1, 0, 0, {1'000'000u + static_cast<uint64_t>(rank), 0, 0, 0, 10})};
    f.num_written = 1;
    files.push_back(f);
  }
  ExportReport report;
  EXPECT_EQ(joined(ChromeValidator::check(chrome(files, &report))), "");
  EXPECT_EQ(report.flows, 2u);
}

// The validator must be able to fail.
TEST(ChromeTrace, TheValidatorSeesWhatIsWrong) {
  const Json good = chrome(exchange());
  auto damaged = [&](auto damage) {
    Json bad = good;
    for (Json& e : bad["traceEvents"])
      if (damage(e)) break;
    return !ChromeValidator::check(bad).empty();
  };
  EXPECT_TRUE(damaged([](Json& e) { return e["ph"] == "X" && e.erase("dur"); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["ph"] == "X" && e.erase("ts"); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["ph"] == "X" && !(e["tid"] = 99).is_null(); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["ph"] == "s" && !(e["id"] = 99).is_null(); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["ph"] == "f" && !(e["ts"] = 0).is_null(); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["name"] == "process_name" && !(e["pid"] = 99).is_null(); }));
  EXPECT_TRUE(damaged([](Json& e) { return e["cat"] == "step" && !(e["dur"] = 0.11).is_null(); }));  // into the next
  EXPECT_FALSE(ChromeValidator::check(Json::array()).empty());
}

TEST(JsonLines, EveryLineIsAnObjectWithItsTimes) {
  const std::string text = text_of([&](std::FILE* out) { ASSERT_TRUE(export_json_lines(exchange(), out).ok()); });
  std::istringstream lines(text);
  std::map<std::string, int> kinds;
  for (std::string line; std::getline(lines, line);) {
    const Json o = Json::parse(line, nullptr, false);
    ASSERT_TRUE(o.is_object()) << line;
    kinds[o["type"]] += 1;
    if (o["type"] != "step") continue;
    EXPECT_EQ(o["begin_ns"].get<int64_t>() + o["wait_data_ns"].get<int64_t>() + o["wait_room_ns"].get<int64_t>() +
                  o["wait_order_ns"].get<int64_t>(), o["ready_ns"].get<int64_t>()) << line;
    EXPECT_GE(o["done_ns"], o["ready_ns"]);
  }
  EXPECT_EQ(kinds["file"], 2);
  EXPECT_EQ(kinds["plan"], 2);
  EXPECT_EQ(kinds["step"], 6);
}

TEST(Timeline, FilesOfAHostShareOneLine) {
  std::vector<TraceFile> files = {exchange_file(0), exchange_file(1)};
  files[1].start = {1'500'000, 5'250'030, 1'700'000'000'000'250'000};  // 30 ns off: noise of clock readings
  const Timeline t(files);
  EXPECT_TRUE(t.is_shared(0) && t.is_shared(1));
  for (uint64_t at : {1'500'000u, 1'500'001u, 2'999'999u}) EXPECT_EQ(t.ns(0, at), t.ns(1, at));
}

TEST(Timeline, ACounterThatIsNotSharedFallsBackOnTheClocks) {
  std::vector<TraceFile> files = {exchange_file(0), exchange_file(1)};
  for (ClockPair* p : {&files[1].start, &files[1].end}) p->ticks += 40'000'000;  // another counter
  const Timeline t(files);
  EXPECT_FALSE(t.is_shared(0) || t.is_shared(1));
  EXPECT_EQ(t.ns(0, 2'000'000), t.ns(1, 42'000'000));
}

TEST(Timeline, HostsStandBesideEachOtherByTheirClocksAndOffsets) {
  std::vector<TraceFile> files = {exchange_file(0), exchange_file(1)};
  files[1].host = "node8 99";
  files[1].start.realtime_ns += 5000;
  files[1].clock_offset_ns = -3000;
  const Timeline t(files);
  EXPECT_EQ(t.ns(1, 1'000'000) - t.ns(0, 1'000'000), 2000);
}

TEST(JsonText, BytesThatAreNoUtf8AreReplaced) {  // regression: a path made a record that no parser accepted
  EXPECT_EQ(json_quoted("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
  for (const char* good : {"é", "→", "\xED\x9F\xBF", "\xF0\x9F\x99\x82", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(json_quoted(good), std::string("\"") + good + "\"");
  const std::string r = "\\ufffd";
  EXPECT_EQ(json_quoted("a\xFFz"), "\"a" + r + "z\"");
  EXPECT_EQ(json_quoted("\xC3"), "\"" + r + "\"") << "cut off";
  EXPECT_EQ(json_quoted("\xC0\xAF"), "\"" + r + r + "\"") << "longer than it need be";
  EXPECT_EQ(json_quoted("\xED\xA0\x80"), "\"" + r + r + r + "\"") << "half a pair";
  EXPECT_EQ(json_quoted("\xF4\x90\x80\x80"), "\"" + r + r + r + r + "\"") << "past the last character";
}

TEST(ChromeTrace, AFullDiskIsAnError) {
  std::FILE* out = std::fopen("/dev/full", "w");
  if (out == nullptr) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(export_chrome(exchange(), out).status().code(), StatusCode::kSystem);
  std::fclose(out);
}

}  // namespace
}  // namespace rondo::testing
