// `rondo perf` as users of nccl-tests call it, and `rondo trace` on a part of its run. Standard output and error of
// each command are separate.
// labels: mp
// timeout: 240
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "launch/launch.h"
#include "rondo/rondo.h"

namespace rondo {
namespace {

/// A temporary folder.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "rondo_perf_cli_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Ended {
  int status = -1;
  std::string out, err;
};

/// Runs a shell command for at most a minute.
Ended run_shell(const std::string& before, const std::string& command) {
  const Folder folder;
  const std::string line =
      before + " timeout 60 " + command + " >" + (folder / "out") + " 2>" + (folder / "err") + " </dev/null";
  const int how = std::system(line.c_str());
  return {WIFEXITED(how) ? WEXITSTATUS(how) : 128, text_of(folder / "out"), text_of(folder / "err")};
}
Ended run_rondo(const std::string& args, const std::string& before = "") {
  return run_shell(before, std::string(RONDO_CLI) + " " + args);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The words of each line that is not a comment.
std::vector<std::vector<std::string>> rows_of(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    auto& row = rows.emplace_back();
    for (std::string word; words >> word;) row.push_back(word);
  }
  return rows;
}

TEST(PerfCli, TheLastOfRepeatedFlagsHolds) {
  const Ended perf = run_rondo("perf all_reduce --threads 3 -b 8 -n 7 --threads 2 -b 64 -n 2 --iters 3");
  ASSERT_EQ(perf.status, 0) << perf.err;
  EXPECT_TRUE(has(perf.out, "nRanks 2 ")) << perf.out;
  EXPECT_TRUE(has(perf.out, " iters: 3 ")) << perf.out;
  ASSERT_EQ(rows_of(perf.out).size(), 1u);
  EXPECT_EQ(rows_of(perf.out)[0][0], "64");
  const Ended explain = run_rondo("explain all_reduce --ranks 5 --algo ring --ranks 3");
  EXPECT_EQ(explain.status, 0) << explain.err;
  EXPECT_EQ(explain.out, run_rondo("explain all_reduce --algo ring --ranks 3").out);
  EXPECT_NE(run_rondo("perf all_reduce broadcast -b 8").status, 0) << "two collectives are no repeated flag";
}

TEST(PerfCli, MedianAndSpreadStandBehindNcclTestsColumns) {
  const Ended p = run_rondo("perf all_reduce --threads 2 -b 8 -e 64K -f 8192 -n 40");
  ASSERT_EQ(p.status, 0) << p.err;
  EXPECT_TRUE(has(p.out, "median      p10      p90   median      p10      p90  disturbed\n")) << p.out;
  const auto rows = rows_of(p.out);
  ASSERT_EQ(rows.size(), 2u) << p.out;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 20u) << p.out;
    EXPECT_EQ(row[8], "0") << "#wrong of nccl-tests";
    EXPECT_EQ(row[12], "0");
    for (size_t at : {13, 16}) {
      const double median = std::stod(row[at]), p10 = std::stod(row[at + 1]), p90 = std::stod(row[at + 2]);
      EXPECT_GT(p10, 0);
      EXPECT_LE(p10, median);
      EXPECT_LE(median, p90);
    }
    EXPECT_TRUE(std::set<std::string>({"no", "out", "in", "both"}).contains(row[19])) << row[19];
  }
  const Ended queued = run_rondo("perf all_reduce --threads 2 -b 64 -n 4 -z 0");
  ASSERT_EQ(rows_of(queued.out).size(), 1u) << queued.err;
  EXPECT_EQ(rows_of(queued.out)[0][13], "N/A") << "queued calls have no times of their own";
  EXPECT_EQ(rows_of(queued.out)[0][19], "N/A");
  const Ended help = run_rondo("perf --help");
  EXPECT_TRUE(has(help.out, "disturbed measurements: the time is above 1.25 medians, or the p90 is above twice the p10"))
      << help.out;
}

TEST(PerfCli, JsonAloneOnTheStandardOutput) {
  const Ended p = run_rondo("perf all_reduce --ranks 2 -b 64 -e 512 -f 8 -n 3 -J -");
  ASSERT_EQ(p.status, 0) << p.err;
  const nlohmann::json j = nlohmann::json::parse(p.out, nullptr, false);
  ASSERT_FALSE(j.is_discarded()) << p.out;
  EXPECT_EQ(j["results"].size(), 2u);
  EXPECT_GT(j["results"][0]["out_of_place"]["median"].get<double>(), 0);
  EXPECT_LE(j["results"][0]["in_place"]["p10"], j["results"][0]["in_place"]["p90"]);
  EXPECT_TRUE(j["results"][0]["out_of_place"]["disturbed"].is_boolean());
  EXPECT_EQ(rows_of(p.err).size(), 2u) << "the table: " << p.err;
  std::ifstream level3("/sys/devices/system/cpu/cpu0/cache/index3/size");
  if (uint64_t kib = 0; level3 >> kib) {
    EXPECT_EQ(j["config"]["last_level_cache_bytes"], kib << 10);
  }
  const Ended explain = run_rondo("perf all_reduce --threads 2 -b 64 --explain --bursts 3 -J -");
  EXPECT_FALSE(nlohmann::json::parse(explain.out, nullptr, false).is_discarded()) << explain.out;
}

TEST(PerfCli, EveryFlagOfNcclTestsIsTakenOrAnswered) {
  // Flags without effect: each is printed with its meaning in nccl-tests.
  const Ended noted = run_rondo(
      "perf all_reduce -t 1 -g 2 -b 64 -e 64 -i 1 -n 3 -m 1 -w 1 -N 1 -p 1 -c 1 -o sum -d float -r all -z 3 -y 1 -T 60 "
      "-G 0 -C 1 -S 1 -a 1 -R 2 -x 1 -D 0 -V 8 -M 1 -u 0 -I 1 -K 1");
  ASSERT_EQ(noted.status, 0) << noted.err;
  EXPECT_TRUE(has(noted.out, "nRanks 2 ")) << "-g 2 are two ranks: " << noted.out;
  for (const char* flag :
       {"-p,--parallel_init 1", "-y,--stream_null 1", "-C,--report_cputime 1", "-x,--cta_policy 1",
        "-V,--device_cta_count 8", "-M,--memory 1", "-I,--per_iter_timing 1", "-K,--per_iter_skip 1"})
    EXPECT_TRUE(has(noted.err, "rondo perf: " + std::string(flag) + " has no effect: nccl-tests "))
        << flag << noted.err;
  const auto rows = rows_of(noted.out);
  ASSERT_EQ(rows.size(), 1u) << noted.out;
  ASSERT_EQ(rows[0].size(), 22u) << "with date and time of -S";
  EXPECT_EQ(rows[0][13].size(), std::string("2026-01-01").size()) << rows[0][13];
  // By their long names, all off.
  const Ended quiet = run_rondo(
      "perf all_reduce --nthreads 2 --ngpus 1 --minbytes 64 --maxbytes 64 --stepbytes 1 --stepfactor 2 --iters 3 "
      "--agg_iters 1 --warmup_iters 1 --run_cycles 1 --parallel_init 0 --check 1 --op sum --datatype float --root 0 "
      "--blocking 2 --stream_null 0 --timeout 60 --cudagraph 0 --report_cputime 0 --report_timestamps 0 --average 1 "
      "--local_register 0 --cta_policy 0 --device_implementation 0 --device_cta_count 0 --memory 0 --unalign 0 "
      "--per_iter_timing 0 --per_iter_skip 0");
  EXPECT_EQ(quiet.status, 0) << quiet.err;
  EXPECT_EQ(quiet.err, "");
  // A flag that would change the measurement.
  const Ended graph = run_rondo("perf all_reduce --threads 2 -b 64 -G 4");
  EXPECT_EQ(graph.status, 2);
  EXPECT_TRUE(has(graph.err,
                  "-G,--cudagraph 4: nccl-tests replays the iterations as a CUDA graph with it, and rondo perf "
                  "times calls: leave it out"))
      << graph.err;
  EXPECT_EQ(run_rondo("perf all_reduce --threads 2 -b 64 -D 1").status, 2);
}

// mpirun -np 2 all_reduce_perf -t 1 -g 1: two ranks of one job, not two jobs with one rank.
TEST(PerfCli, OneThreadUnderALauncherIsARankOfItsWorld) {
  rondo_unique_id id;
  ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK);
  const Folder folder;
  const std::string world = "RONDO_UNIQUE_ID=" + unique_id_to_hex(id) + " RONDO_NRANKS=2 RONDO_INIT_TIMEOUT_S=60";
  const std::string args = "perf all_reduce -t 1 -g 1 -b 64 -n 2";
  const Ended zero = run_shell(world, std::string("sh -c '(RONDO_RANK=1 " RONDO_CLI " ") + args + " >" +
                                          (folder / "one") + " 2>&1)& RONDO_RANK=0 " RONDO_CLI " " + args +
                                          "; s=$?; wait; "
                                          "exit $s'");
  EXPECT_EQ(zero.status, 0) << zero.err << text_of(folder / "one");
  EXPECT_TRUE(has(zero.out, "nRanks 2 (processes of RONDO_RANK)")) << zero.out;
  EXPECT_EQ(text_of(folder / "one"), "") << "rank 0 prints the table";
  const Ended many = run_rondo("perf all_reduce -t 2 -b 64 -n 2", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 RONDO_JOB_ID=1");
  EXPECT_EQ(many.status, 2);
  EXPECT_TRUE(has(many.err, "-t 2 -g 1: a process of Open MPI is one rank here: start 2 times as many processes"))
      << many.err;
}

TEST(PerfCli, SpellingsOfNcclAreUnderstood) {
  for (const char* args : {"all_reduce_perf --algo Ring --proto LL", "AllReduce --algo Tree --proto Simple",
                           "all_reduce --algo TREE --proto LL128", "alltoall_perf --proto simple", "sendrecv_perf",
                           "all_reduce --algo two-shot"}) {
    const Ended p = run_rondo("perf " + std::string(args) + " --threads 2 -b 64 -n 2");
    EXPECT_EQ(p.status, 0) << args << ": " << p.err;
  }
  EXPECT_EQ(run_rondo("explain all_reduce_perf --algo Ring --ranks 3").out,
            run_rondo("explain all_reduce --algo ring --ranks 3").out);
  EXPECT_EQ(run_rondo("check AllReduce --algo Ring --max-ranks 3").status, 0);
}

TEST(PerfCli, ALinkNamedAsNcclTestsProgramIsThatProgram) {
  const Folder folder;
  const std::string link = folder / "all_reduce_perf";
  std::filesystem::create_symlink(RONDO_CLI, link);
  const Ended p = run_shell("", link + " --ranks 2 -b 8 -e 64 -f 8 -n 2");
  EXPECT_EQ(p.status, 0) << p.err;
  EXPECT_TRUE(has(p.out, "# Collective test starting: all_reduce\n")) << p.out;
  EXPECT_EQ(rows_of(p.out).size(), 2u) << p.out;
}

TEST(PerfCli, ListsSayWhatThereIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"perf all_to_none", "there is no collective 'all_to_none': choose one of all_reduce, "},
      {"perf all_reduce -d quad", "there is no datatype 'quad': choose one of int8, uint8, "},
      {"perf all_reduce -o sum,median", "there is no op 'median': choose one of sum, prod, max, min, avg, "},
      {"perf all_reduce --algo zigzag", "there is no algorithm 'zigzag' for all_reduce: choose one of ring, "},
      {"perf all_reduce --proto ll64", "there is no protocol 'll64': choose one of inline, simple, ll, ll128"},
      {"perf all_reduce --device tpu", "there is no device 'tpu': choose one of host, cuda"},
      {"perf sendrecv --algo ring", "there is no algorithm 'ring' for sendrecv, which has no algorithms"},
      {"explain all_to_none", "there is no collective 'all_to_none': choose one of all_reduce, "},
      {"explain all_reduce --algo zigzag", "there is no algorithm 'zigzag' for all_reduce: choose one of ring, "},
      {"check all_to_none", "there is no collective 'all_to_none': choose one of all_reduce, "},
      {"check --algo zigzag", "there is no algorithm 'zigzag': choose one of ring, "},
      {"check all_gather --algo tree", "there is no algorithm 'tree' for all_gather: choose one of ring, "},
  };
  for (const auto& [args, message] : cases) {
    const Ended p = run_rondo(args);
    EXPECT_EQ(p.status, 2) << args;
    EXPECT_TRUE(has(p.err, message)) << args << ": " << p.err;
  }
}

/// The steps of a trace by `rondo trace export --jsonl`: one text for each, and their operations.
struct Steps {
  std::set<std::string> lines;
  std::set<int> ranks;
  std::set<int> calls;
  double first_us = 1e18, last_us = 0;
};
Steps steps_of(const std::string& trace, const std::string& selection) {
  const Ended p = run_rondo("trace export " + trace + " --jsonl " + selection);
  EXPECT_EQ(p.status, 0) << p.err;
  Steps steps;
  std::istringstream lines(p.out);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_discarded() || j["type"] != "step") continue;
    steps.lines.insert(line);
    steps.ranks.insert(j["rank"].get<int>());
    steps.calls.insert(j["sequence"].get<int>());
    steps.first_us = std::min(steps.first_us, j["begin_ns"].get<double>() * 1e-3);
    steps.last_us = std::max(steps.last_us, j["done_ns"].get<double>() * 1e-3);
  }
  return steps;
}

// A sweep of two sizes: a selection equals that part of the whole export, with the same times.
TEST(TraceCli, APartOfASweepByCallsRanksAndTime) {
  const Folder folder;
  const std::string trace = folder / "trace";
  ASSERT_EQ(
      run_rondo("perf all_reduce --threads 3 -b 64 -e 64K -f 1024 -n 5 --algo ring", "RONDO_TRACE=" + trace).status, 0);
  const Steps all = steps_of(trace, "");
  ASSERT_EQ(all.ranks, (std::set<int>{0, 1, 2}));
  const int last = *all.calls.rbegin();
  ASSERT_GE(last, 20);

  const Ended calls = run_rondo("trace calls " + trace);
  EXPECT_EQ(calls.status, 0) << calls.err;
  EXPECT_TRUE(has(calls.out, "all_reduce of 16 float sum  ring ")) << calls.out;
  EXPECT_TRUE(has(calls.out, "all_reduce of 16384 float sum  ring ")) << calls.out;

  const std::string range = std::to_string(last - 3) + "-" + std::to_string(last - 1);
  const Steps some = steps_of(trace, "--calls " + range + " --ranks 0,2");
  EXPECT_EQ(some.ranks, (std::set<int>{0, 2}));
  EXPECT_EQ(some.calls, (std::set<int>{last - 3, last - 2, last - 1}));
  EXPECT_TRUE(std::includes(all.lines.begin(), all.lines.end(), some.lines.begin(), some.lines.end()))
      << "times do not depend on the selection";

  const std::string time = " --from " + std::to_string(some.first_us) + " --to " + std::to_string(some.last_us);
  const Steps timed = steps_of(trace, time);
  EXPECT_LT(timed.lines.size(), all.lines.size());
  EXPECT_TRUE(std::includes(timed.lines.begin(), timed.lines.end(), some.lines.begin(), some.lines.end()));

  const Ended chrome = run_rondo("trace export " + trace + " --calls " + range + " --ranks 0-1");
  const nlohmann::json picture = nlohmann::json::parse(chrome.out, nullptr, false);
  ASSERT_FALSE(picture.is_discarded()) << chrome.err;
  std::set<std::string> processes;
  int flows = 0;
  for (const auto& event : picture["traceEvents"]) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"].get<std::string>().substr(0, 6));
    if (event.value("cat", "") == "operation")
      EXPECT_TRUE(some.calls.contains(event["args"]["sequence"].get<int>())) << event;
    flows += event["ph"] == "s" ? 1 : 0;
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0", "rank 1"}));
  EXPECT_GT(flows, 0);
  EXPECT_EQ(picture["otherData"]["unmatched_sends"], 0) << "a receiver that is not selected is not missing";
  EXPECT_EQ(picture["otherData"]["files"].size(), 2u);

  const Ended summary = run_rondo("trace summary " + trace + " --calls " + range + " --ranks 1");
  ASSERT_EQ(rows_of(summary.out).size(), 2u) << summary.out;
  EXPECT_EQ(rows_of(summary.out)[1][1], "1");
  EXPECT_EQ(rows_of(summary.out)[1][2], "3") << "calls";
}

TEST(TraceCli, ASelectionThatHoldsNothingOrIsNoneSaysWhatThereIs) {
  const Folder folder;
  const std::string trace = folder / "trace";
  ASSERT_EQ(run_rondo("perf all_reduce --threads 2 -b 64 -n 2", "RONDO_TRACE=" + trace).status, 0);
  const Ended none = run_rondo("trace export " + trace + " --calls 100000");
  EXPECT_EQ(none.status, 2);
  EXPECT_TRUE(has(none.err, "no record is selected: the traces have calls 1-")) << none.err;
  EXPECT_TRUE(has(none.err, "of ranks 0, 1")) << none.err;
  EXPECT_TRUE(has(run_rondo("trace export " + trace + " --calls 7-3").err, "--calls 7-3 is not a number or a range"));
  EXPECT_TRUE(has(run_rondo("trace summary " + trace + " --ranks x").err, "--ranks x is not a list of ranks"));
  EXPECT_TRUE(has(run_rondo("trace summary " + trace + " --from 9 --to 3").err, "--from is after --to"));
}

}  // namespace
}  // namespace rondo
