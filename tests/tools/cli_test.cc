// The program `rondo` as users run it: output, exit status, ranks that die, a parent that dies.
// labels: mp
// timeout: 240
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "perf_operations.h"

namespace rondo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(60);

/// `rondo ARGS` with stdout and stderr in one pipe.
class Program {
 public:
  explicit Program(std::vector<std::string> args) {
    args.insert(args.begin(), RONDO_CLI);
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], 1);
      dup2(ends[1], 2);
      execv(argv[0], argv.data());
      _exit(126);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  ~Program() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(out_);
  }

  /// Reads until the text appears. Returns false at the end of the output or at the deadline.
  bool read_until(const std::string& text) {
    while (text_.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }
  /// Reads to the end of the output: then all processes that have the pipe are gone.
  bool read_all() {
    while (read_some()) {
    }
    return ended_;
  }
  int exit_status() {
    EXPECT_TRUE(read_all()) << text_;
    int how = 0;
    if (!ended_) kill(pid_, SIGKILL);
    waitpid(pid_, &how, 0);
    pid_ = -1;
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  }
  const std::string& text() const { return text_; }
  pid_t pid() const { return pid_; }
  /// "#  Rank  1 Group  0 Pid   4711 on ...": the process of a rank.
  pid_t pid_of_rank(int rank) const {
    const size_t at = text_.find("#  Rank  " + std::to_string(rank) + " Group  0 Pid ");
    return at == std::string::npos ? -1 : std::atoi(text_.c_str() + at + 24);
  }

 private:
  bool read_some() {
    pollfd p{out_, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up_ - Clock::now()).count();
    if (left <= 0 || poll(&p, 1, static_cast<int>(left)) <= 0) return false;
    char buffer[4096];
    const ssize_t n = read(out_, buffer, sizeof buffer);
    ended_ = n <= 0;
    if (n > 0) text_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  const Clock::time_point give_up_ = Clock::now() + kDeadline;
  pid_t pid_ = -1;
  int out_ = -1;
  std::string text_;
  bool ended_ = false;
};

std::vector<std::string> table_rows(const std::string& text) {
  std::vector<std::string> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#') rows.push_back(line);
  return rows;
}

TEST(Cli, ExplainPrintsTheGoldenText) {
  Program p({"explain", "all_reduce", "--algo", "ring", "--ranks", "3", "--elements", "6"});
  EXPECT_EQ(p.exit_status(), 0);
  std::ifstream file(std::filesystem::path(RONDO_SOURCE_DIR) /
                     "tests/schedule/golden/ring_all_reduce_3_ranks_6_elems.txt");
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(p.text(), golden.str());
}

TEST(Cli, CheckProvesAndSaysWhat) {
  Program p({"check", "all_gather", "--max-ranks", "5", "--max-pair-ranks", "2"});
  EXPECT_EQ(p.exit_status(), 0) << p.text();
  for (const char* words :
       {"ring                  all_gather          1..5       4       4/5 S", "variable", ", 0 failed"})
    EXPECT_NE(p.text().find(words), std::string::npos) << p.text();
}

TEST(Cli, ChecksAndExplainsRanksOnHosts) {
  Program check({"check", "all_reduce", "--algo", "hierarchical", "--hosts", "0,1,0,1", "--max-pair-ranks", "0"});
  EXPECT_EQ(check.exit_status(), 0) << check.text();
  EXPECT_NE(check.text().find("2 crossings, 4/4 S over a host's link"), std::string::npos) << check.text();
  Program explain({"explain", "all_reduce", "--algo", "hierarchical", "--hosts", "2x2"});
  EXPECT_EQ(explain.exit_status(), 0);
  EXPECT_NE(explain.text().find("4 ranks on hosts 2x2"), std::string::npos) << explain.text();
  Program perf({"perf", "all_reduce", "--threads", "4", "--hosts", "2x2", "-b", "1M", "-e", "1M", "-n", "2", "-v"});
  EXPECT_EQ(perf.exit_status(), 0) << perf.text();
  EXPECT_NE(perf.text().find("hosts 2x2 (pretended)"), std::string::npos) << perf.text();
}

TEST(Cli, MistakesAreNamedAndFail) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"explain", "all_reduce", "--algo", "zigzag"}, "no algorithm 'zigzag'"},
      {{"explain", "all_to_none"}, "no collective 'all_to_none'"},
      {{"explain", "all_reduce", "--hosts", "2y2"}, "\"2y2\" is not a host layout"},
      {{"explain", "all_reduce", "--root", "1"}, "all_reduce has no root"},
      {{"explain", "send"}, "send is one message between two ranks"},
      {{"check", "all_to_none"}, "no collective 'all_to_none'"},
      {{"check", "all_gather", "--algo", "tree"}, "there is no algorithm 'tree' for all_gather"},
      {{"perf", "all_reduce", "-b", "12Q"}, "'12Q' is not a size"},
      {{"perf", "all_reduce", "-d", "quad"}, "no datatype 'quad'"},
      {{"perf", "all_reduce", "-b", "2K", "-e", "1K"}, "-e 1024 is below -b 2048"},
      {{"perf", "all_reduce", "--ranks", "2", "--threads", "2"}, "exclude one another"},
      {{"perf", "all_reduce", "--threads", "2", "-b", "1K", "--algo", "zigzag"}, "no algorithm 'zigzag'"},
      {{"perf", "all_gather", "--threads", "2", "-b", "1K", "--algo", "tree"}, "no algorithm 'tree' for all_gather"},
      {{"perf", "all_to_none"}, "there is no collective 'all_to_none': choose one of all_reduce"},
      {{"perf", "sendrecv", "--algo", "ring"}, "no algorithm 'ring' for sendrecv"},
      {{"perf", "sendrecv", "--wire", "bf16"}, "sendrecv carries one type"},
      {{"perf", "all_gather_v", "--explain"}, "--explain needs a collective with equal counts"},
      {{"perf", "all_reduce", "-d", "float,int8", "--wire", "bf16"}, "input int8, wire bfloat16, accumulator int8"},
      {{"perf", "all_reduce", "--wire", "bf16,half"}, "--wire takes one type"},
      {{"perf", "reduce", "--threads", "2", "-b", "1K", "-r", "2"}, "root is 2: the ranks of this communicator"},
      {{"perf"}, "collective is required"},
  };
  for (const auto& [args, message] : cases) {
    Program p(args);
    EXPECT_NE(p.exit_status(), 0) << message;
    EXPECT_NE(p.text().find(message), std::string::npos) << p.text();
  }
}

TEST(Cli, InfoAndHelpOfEveryCommand) {
  Program info({"info"});
  EXPECT_EQ(info.exit_status(), 0);
  for (const char* word : {"SIMD in use", "inproc", "shm", "open files"})
    EXPECT_NE(info.text().find(word), std::string::npos) << info.text();
  for (const char* command : {"explain", "perf", "info", "check", "calibrate", "topo"}) {
    Program help({command, "--help"});
    EXPECT_EQ(help.exit_status(), 0) << command;
  }
}

TEST(Cli, InfoSaysWhatAnotherMachineWouldGet) {
  const std::string folder = std::string(RONDO_SOURCE_DIR) + "/tests/topology/machines/";
  Program mesh({"info", "--machine", folder + "v100_nvlink_4.txt"});
  EXPECT_EQ(mesh.exit_status(), 0) << mesh.text();
  for (const char* words : {"Tesla V100-SXM2-16GB", "NV2", "2 NVLinks between the two, 20 GB/s each", "40.0 GB/s"})
    EXPECT_NE(mesh.text().find(words), std::string::npos) << words << " in " << mesh.text();
  setenv("RONDO_P2P_LEVEL", "loc", 1);
  Program off({"info", "--machine", folder + "v100_nvlink_4.txt"});
  unsetenv("RONDO_P2P_LEVEL");
  EXPECT_EQ(off.exit_status(), 0);
  EXPECT_NE(off.text().find("P2P is turned off"), std::string::npos) << off.text();
  Program wrong({"info", "--machine", folder + "v100_nvlink_4.golden"});
  EXPECT_EQ(wrong.exit_status(), 1);
  EXPECT_NE(wrong.text().find("line 1: unknown word"), std::string::npos) << wrong.text();
  Program missing({"info", "--machine", folder + "none.txt"});
  EXPECT_EQ(missing.exit_status(), 1);
  EXPECT_NE(missing.text().find("cannot be opened"), std::string::npos) << missing.text();
}

TEST(Cli, PerfWithPartOfALaunchersVariablesSaysWhatIsMissing) {
  setenv("RANK", "0", 1);
  Program perf({"perf", "all_reduce", "-b", "8", "-e", "8"});
  unsetenv("RANK");
  EXPECT_EQ(perf.exit_status(), 2);
  EXPECT_NE(perf.text().find("WORLD_SIZE is not set"), std::string::npos) << perf.text();
}

TEST(Cli, InfoWithoutADriverSaysWhy) {
  setenv("RONDO_CUDA", "0", 1);
  Program info({"info"});
  Program record({"info", "--record"});
  unsetenv("RONDO_CUDA");
  EXPECT_EQ(info.exit_status(), 0);
  EXPECT_NE(info.text().find("none: CUDA is turned off (RONDO_CUDA=0)"), std::string::npos) << info.text();
  EXPECT_EQ(record.exit_status(), 1);
  EXPECT_NE(record.text().find("CUDA is turned off"), std::string::npos) << record.text();
}

TEST(Cli, InfoConfigSaysWhatIsInForceAndFromWhere) {
  char path[] = "/tmp/rondo-cli-test-XXXXXX";
  const int fd = mkstemp(path);
  const std::string text = "# of the test\nproto = simple\ntimeout_s = 7\nsecret = hush\nalgorithm = ring\n";
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(fd);
  setenv("RONDO_CONFIG", path, 1);
  setenv("RONDO_TIMEOUT_S", "8", 1);
  Program good({"info", "--config"});
  EXPECT_EQ(good.exit_status(), 0);
  auto has_line = [&](const std::string& key, const std::string& value, const std::string& from) {
    std::istringstream lines(good.text());
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(key + " ") && line.find(" " + value + " ") != std::string::npos && line.ends_with(from))
        return true;
    return false;
  };
  EXPECT_TRUE(has_line("timeout_s", "8", "environment")) << good.text();
  EXPECT_TRUE(has_line("proto", "simple", std::string(path) + ":2")) << good.text();
  EXPECT_TRUE(has_line("init_timeout_s", "120", "default")) << good.text();
  EXPECT_EQ(good.text().find("hush"), std::string::npos) << "a secret is not shown";
  EXPECT_NE(good.text().find(std::string(path) + ":5: rondo has no setting algorithm (is algo meant?)"),
            std::string::npos)
      << good.text();
  setenv("RONDO_TIMEOUT_S", "soon", 1);
  Program bad({"info", "--config"});
  EXPECT_EQ(bad.exit_status(), 1);
  EXPECT_NE(bad.text().find("RONDO_TIMEOUT_S=soon: expected a positive number of seconds"), std::string::npos)
      << bad.text();
  unsetenv("RONDO_TIMEOUT_S");
  unsetenv("RONDO_CONFIG");
  unlink(path);
}

TEST(Cli, PerfAcrossProcessesVerifiesAndWritesJson) {
  const std::string path = std::filesystem::temp_directory_path() / ("rondo_cli_" + std::to_string(getpid()) + ".json");
  Program p({"perf", "all-reduce", "--ranks", "2", "-b", "64", "-e", "64K", "-f", "32", "-n", "3", "-d", "float,int8",
             "-o", "sum,avg", "--plan", "-J", path});
  EXPECT_EQ(p.exit_status(), 0) << p.text();
  EXPECT_EQ(table_rows(p.text()).size(), 12u) << p.text();
  EXPECT_NE(p.text().find("Out of bounds values : 0 OK"), std::string::npos) << p.text();
  std::ifstream file(path);
  const nlohmann::json j = nlohmann::json::parse(file, nullptr, false);
  std::filesystem::remove(path);
  ASSERT_FALSE(j.is_discarded());
  EXPECT_EQ(j["results"].size(), 12u);
  EXPECT_EQ(j["config"]["num_ranks"], 2);
  EXPECT_FALSE(j["results"][0]["plan"].get<std::string>().empty());
}

TEST(Cli, PerfExplainMeasuresEveryCandidate) {
  Program p({"perf", "all_reduce", "--ranks", "3", "-b", "64", "-e", "64K", "-f", "1024", "--explain", "--json", "--bursts",
             "3"});
  ASSERT_EQ(p.exit_status(), 0) << p.text();
  const nlohmann::json j = nlohmann::json::parse(p.text(), nullptr, false);
  ASSERT_FALSE(j.is_discarded()) << p.text();
  ASSERT_EQ(j["points"].size(), 2u);
  for (const auto& point : j["points"]) {
    const auto& candidates = point["candidates"];
    EXPECT_GE(candidates.size(), 5u);
    EXPECT_EQ(point["chosen"], candidates[0]["name"]);
    EXPECT_GE(point["regret"].get<double>(), 0);
    double last = 0;
    for (const auto& c : candidates) {
      EXPECT_GE(c["forecast_us"].get<double>(), last);
      last = c["forecast_us"];
      EXPECT_GT(c["measured_us"].get<double>(), 0);
      EXPECT_LE(c["least_us"].get<double>(), c["measured_us"].get<double>());
    }
  }
}

TEST(Cli, PerfOfThreadsInEveryMode) {
  const std::vector<std::string> modes[] = {{"-z", "0"},
                                            {"-z", "1", "-a", "3", "-u", "3"},
                                            {"-m", "3"},
                                            {"-R", "1"},
                                            {"--rotate", "4", "-c", "0", "-a", "0"}};
  for (const tools::PerfOperation& operation : tools::perf_operations())
    for (const auto& mode : modes) {
      std::vector<std::string> args{
          "perf", std::string(operation.name), "--threads", "3", "-b", "100", "-e", "40K", "-f", "20", "-n", "3"};
      args.insert(args.end(), mode.begin(), mode.end());
      Program p(args);
      EXPECT_EQ(p.exit_status(), 0) << operation.name << " " << mode[0] << mode[1] << "\n" << p.text();
      EXPECT_EQ(table_rows(p.text()).size(), operation.moves_bytes() ? 3u : 1u) << p.text();
    }
}

TEST(Cli, PerfAcrossProcessesOfEveryOperationFromEveryRoot) {
  for (const tools::PerfOperation& operation : tools::perf_operations()) {
    Program p({"perf", std::string(operation.name), "--ranks", "3", "-b", "1000", "-e", "300K", "-f", "300", "-n", "2",
               "-r", "-1"});
    EXPECT_EQ(p.exit_status(), 0) << operation.name << "\n" << p.text();
    const std::vector<std::string> rows = table_rows(p.text());
    EXPECT_EQ(rows.size(), operation.is_rooted() ? 6u : operation.moves_bytes() ? 2u : 1u) << p.text();
    EXPECT_EQ(rows.back().substr(46, 6), operation.is_rooted() ? "     2" : "    -1") << p.text();
  }
}

TEST(Cli, PerfOfMixedTypesIsVerified) {
  const std::vector<std::string> calls[] = {
      {"reduce_scatter", "--wire", "bf16", "-o", "all"},
      {"all_reduce", "-d", "float,half,bf16", "--wire", "fp8_e4m3", "--output", "bf16", "-o", "avg,min"},
      {"all_gather", "--wire", "bf16", "--accumulator", "float"},
      {"reduce_scatter_v", "-d", "half", "--wire", "float", "--output", "float"}};
  for (const std::vector<std::string>& call : calls) {
    std::vector<std::string> args{"perf", "--ranks", "3", "-b", "100", "-e", "200K", "-f", "2000", "-n", "2"};
    args.insert(args.begin() + 1, call.begin(), call.end());
    Program p(args);
    EXPECT_EQ(p.exit_status(), 0) << p.text();
    EXPECT_NE(p.text().find("Out of bounds values : 0 OK"), std::string::npos) << p.text();
    EXPECT_NE(p.text().find("# Types that differ from the column's:"), std::string::npos) << p.text();
  }
}

TEST(Cli, PerfNamesTheRankThatWasKilledAndHow) {
  Program p({"perf", "all_reduce", "--ranks", "3", "-b", "4K", "-N", "0"});
  ASSERT_TRUE(p.read_until("\n        4096 ")) << p.text();
  const pid_t victim = p.pid_of_rank(1);
  ASSERT_GT(victim, 1) << p.text();
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_EQ(p.exit_status(), 1);
  EXPECT_NE(p.text().find("rank 1 (pid " + std::to_string(victim) + ") was killed by signal 9 (Killed)"),
            std::string::npos)
      << p.text();
}

TEST(Cli, RanksDieWithTheirParent) {
  Program p({"perf", "all_reduce", "--ranks", "2", "-b", "4K", "-N", "0"});
  ASSERT_TRUE(p.read_until("\n        4096 ")) << p.text();
  ASSERT_EQ(kill(p.pid(), SIGKILL), 0);
  EXPECT_TRUE(p.read_all()) << "the output's end means that the ranks are gone, too";
}

}  // namespace
}  // namespace rondo
