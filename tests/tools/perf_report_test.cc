// The table and the JSON of `rondo perf`, for programs that read nccl-tests' output.
// labels: unit
#include "perf_report.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace rondo::tools {
namespace {

ResultRow a_row() {
  ResultRow row;
  row.shape = call_shape(*find_perf_operation("all_reduce"), Dtype::kFloat32, 2, 1 << 20);
  row.dtype = Dtype::kFloat32;
  row.op = Op::kSum;
  row.out_of_place = {0.001, 0, Spread{0.00099, 0.00098, 0.00199}};
  row.in_place = Measurement{0.0005, 3};
  return row;
}

struct Printed {
  std::string text;
  nlohmann::json json;
  bool all_correct;
};

Printed print(const PerfOptions& options, const ResultRow& row, const std::string& error) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  Report report(options, {2, "threads", {"rondo", "perf"}, std::vector<RankInfo>(2, describe_this_rank())}, stream);
  report.header();
  report.row(row);
  report.footer(error);
  std::fclose(stream);
  Printed printed{std::string(text, size), nlohmann::json::parse(report.json()), report.all_correct()};
  std::free(text);
  return printed;
}

TEST(FormatNumber, KeepsItsWidth) {
  EXPECT_EQ(format_number(1.234, 6), "1.23");
  EXPECT_EQ(format_number(12345.67, 7), "12345.7");
  EXPECT_EQ(format_number(1234567.8, 7), "1234568");
  EXPECT_EQ(format_number(123456789.0, 7), "1.2e+08");
  EXPECT_EQ(format_number(12345678.0, 6), "1e+07");
}

TEST(Table, RowsAreNcclTestsColumns) {
  const Printed printed = print({}, a_row(), "");
  EXPECT_NE(printed.text.find(
                "     1048576        262144     float     sum      -1  1000.00    1.05    1.05       0   "
                "500.00    2.10    2.10       3   990.00   980.00  1990.00      N/A      N/A      N/A        out\n"),
            std::string::npos)
      << printed.text;
  EXPECT_NE(printed.text.find(
                "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
                "time   algbw   busbw  #wrong   median      p10      p90   median      p10      p90  disturbed\n"),
            std::string::npos)
      << printed.text;
  EXPECT_NE(printed.text.find("# Out of bounds values : 3 FAILED\n"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("# Avg bus bandwidth    : 1.57286\n"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("# Disturbed            : 1 of 1 measurements"), std::string::npos) << printed.text;
  EXPECT_FALSE(printed.all_correct);
  std::istringstream lines(printed.text);
  int num_rows = 0;
  for (std::string line; std::getline(lines, line);) num_rows += !line.empty() && line[0] != '#';
  EXPECT_EQ(num_rows, 1);
}

TEST(Table, UncheckedAndGatheredRows) {
  ResultRow row = a_row();
  row.op.reset();
  row.out_of_place.num_wrong.reset();
  row.in_place->num_wrong.reset();
  row.plan = "ring because";
  PerfOptions options;
  options.rotate = 8;
  const Printed printed = print(options, row, "rank 1 went away");
  EXPECT_NE(printed.text.find("float    none      -1"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("     N/A   990.00"), std::string::npos) << printed.text;
  EXPECT_NE(printed.text.find("# 1048576 bytes: ring because\n"), std::string::npos);
  EXPECT_NE(printed.text.find("# error: rank 1 went away\n"), std::string::npos);
  EXPECT_TRUE(printed.json["results"][0]["out_of_place"]["nwrong"].is_null());
  EXPECT_EQ(printed.json["results"][0]["plan"], "ring because");
  EXPECT_EQ(printed.json["regime"], "cold");
  EXPECT_EQ(printed.json["errors"][0], "rank 1 went away");
}

TEST(Table, RootsTypesAndWhatHasNoFormInPlace) {
  ResultRow row = a_row();
  row.op.reset();
  row.root = 1;
  row.in_place.reset();
  PerfOptions options;
  options.operation = find_perf_operation("broadcast");
  options.wire = Dtype::kBfloat16;
  const Printed printed = print(options, row, "");
  EXPECT_NE(
      printed.text.find("float    none       1  1000.00    1.05    1.05       0      N/A     N/A     N/A     N/A "),
      std::string::npos)
      << printed.text;
  EXPECT_NE(printed.text.find("# Types that differ from the column's: wire bfloat16\n"), std::string::npos);
  EXPECT_NE(printed.text.find("# Avg bus bandwidth    : 1.04858\n"), std::string::npos) << printed.text;
  const nlohmann::json& result = printed.json["results"][0];
  EXPECT_EQ(result["root"], "1");
  EXPECT_TRUE(result["in_place"]["time"].is_null());
  EXPECT_DOUBLE_EQ(result["out_of_place"]["bus_bw"], 1.048576);
  EXPECT_EQ(printed.json["config"]["types"], (nlohmann::json{{"wire", "bfloat16"}}));
}

TEST(Table, ABarrierHasATimeAndNoData) {
  ResultRow row;
  row.out_of_place = {0.000002, std::nullopt};
  PerfOptions options;
  options.operation = find_perf_operation("barrier");
  const Printed printed = print(options, row, "");
  EXPECT_NE(printed.text.find("           0             0      none    none      -1     2.00    0.00    0.00     N/A"),
            std::string::npos)
      << printed.text;
  EXPECT_TRUE(printed.all_correct);
}

TEST(Json, KeysOfNcclTests) {
  setenv("RONDO_TEST_SHOWN", "1", 1);
  setenv("RONDO_SECRET", "hush", 1);
  PerfOptions options;
  options.step_factor = 2;
  const Printed printed = print(options, a_row(), "");
  unsetenv("RONDO_SECRET");
  const nlohmann::json& j = printed.json;
  for (const char* key : {"version", "start_time", "end_time", "args", "env", "config", "results", "out_of_bounds",
                          "average_bus_bandwidth", "errors", "regime"})
    EXPECT_TRUE(j.contains(key)) << key;
  const nlohmann::json& result = j["results"][0];
  EXPECT_EQ(result["size"], 1 << 20);
  EXPECT_EQ(result["count"], 1 << 18);
  EXPECT_EQ(result["type"], "float");
  EXPECT_EQ(result["redop"], "sum");
  EXPECT_EQ(result["root"], "-1");
  EXPECT_DOUBLE_EQ(result["out_of_place"]["time"], 1000.0);
  EXPECT_DOUBLE_EQ(result["in_place"]["bus_bw"], 2.097152);
  EXPECT_EQ(result["in_place"]["nwrong"], 3);
  EXPECT_DOUBLE_EQ(result["out_of_place"]["median"], 990.0);
  EXPECT_DOUBLE_EQ(result["out_of_place"]["p90"], 1990.0);
  EXPECT_EQ(result["out_of_place"]["disturbed"], true);
  EXPECT_FALSE(result["in_place"].contains("median"));
  EXPECT_EQ(j["out_of_bounds"]["count"], 3);
  EXPECT_EQ(j["out_of_bounds"]["okay"], "false");
  EXPECT_EQ(j["config"]["step_factor"], 2);
  EXPECT_EQ(j["config"]["devices"].size(), 2u);
  EXPECT_EQ(j["config"]["devices"][1]["device_hex"], "host");
  EXPECT_EQ(j["regime"], "hot");
  const std::string env = j["env"].dump();
  EXPECT_NE(env.find("RONDO_TEST_SHOWN=1"), std::string::npos);
  EXPECT_EQ(env.find("hush"), std::string::npos);
}

TEST(Json, ExistingFilesAreKept) {
  const auto directory = std::filesystem::temp_directory_path() / ("rondo_report_" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  const std::string path = directory / "result.json";
  EXPECT_EQ(write_new_file(path, "one"), path);
  EXPECT_EQ(write_new_file(path, "two"), path + ".0");
  std::ifstream first(path);
  std::string text;
  first >> text;
  EXPECT_EQ(text, "one");
  EXPECT_EQ(write_new_file(directory / "missing" / "x.json", "three"), std::nullopt);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace rondo::tools
