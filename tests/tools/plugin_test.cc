// `rondo check|explain|perf --plugin FILE.so`: an algorithm from outside of the library is proven, printed and measured
// like the library's own, and a wrong one is refused.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace {

struct Ended {
  int exit_status = -1;
  std::string text;  // stdout and stderr
};

Ended rondo(const std::string& arguments) {
  Ended run;
  FILE* pipe = popen((std::string(RONDO_CLI) + " " + arguments + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return run;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) run.text.append(buffer, n);
  const int how = pclose(pipe);
  run.exit_status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return run;
}

const std::string kPlugin = " --plugin " RONDO_OWN_ALGORITHM " ";

TEST(Plugin, IsChecked) {
  const Ended run = rondo("check" + kPlugin + "all_reduce --algo star --max-ranks 20");
  EXPECT_EQ(run.exit_status, 0) << run.text;
  EXPECT_NE(run.text.find("star                all_reduce         1..20       2           S"), std::string::npos)
      << run.text;
}

TEST(Plugin, IsExplained) {
  const Ended run = rondo("explain" + kPlugin + "all_reduce --algo star --ranks 3 --elements 6");
  EXPECT_EQ(run.exit_status, 0) << run.text;
  EXPECT_NE(run.text.find("2 steps: everything to rank 0, the sum to all"), std::string::npos) << run.text;
  EXPECT_NE(rondo("explain --list" + kPlugin).text.find("star"), std::string::npos);
  EXPECT_EQ(rondo("explain --list").text.find("star"), std::string::npos) << "without the plugin there is none";
}

TEST(Plugin, IsBenchmarkedByThreadsAndProcesses) {
  for (const char* world : {"--threads 3", "--ranks 3"}) {
    const Ended run =
        rondo("perf" + kPlugin + "all_reduce --algo star " + world + " -b 8 -e 256K -f 32 -n 3 --explain");
    EXPECT_EQ(run.exit_status, 0) << run.text;
    EXPECT_NE(run.text.find("Out of bounds values : 0 OK"), std::string::npos) << run.text;
    EXPECT_NE(run.text.find("star inline"), std::string::npos) << run.text;
    EXPECT_NE(run.text.find("star simple"), std::string::npos) << run.text;
  }
}

TEST(Plugin, ComesFromTheEnvironmentToo) {
  ASSERT_EQ(setenv("RONDO_PLUGIN", RONDO_OWN_ALGORITHM, 1), 0);
  const Ended run = rondo("perf all_reduce --algo star --threads 2 -b 64 -n 2");
  unsetenv("RONDO_PLUGIN");
  EXPECT_EQ(run.exit_status, 0) << run.text;
  EXPECT_EQ(run.text.find("knows no such variable"), std::string::npos) << run.text;
}

TEST(Plugin, WrongOnesAreRefused) {
  const Ended wrong = rondo("explain --list --plugin " RONDO_WRONG_ALGORITHM);
  EXPECT_EQ(wrong.exit_status, 2) << wrong.text;
  EXPECT_NE(wrong.text.find("algorithm forgetful_star of all_reduce, 4 ranks"), std::string::npos) << wrong.text;
  EXPECT_NE(wrong.text.find("from rank 3"), std::string::npos) << wrong.text;
  const Ended missing = rondo("check --plugin ./no_such_file.so");
  EXPECT_EQ(missing.exit_status, 2);
  EXPECT_NE(missing.text.find("no_such_file.so: cannot be loaded"), std::string::npos) << missing.text;
  const Ended stranger = rondo("check --plugin libm.so.6");
  EXPECT_EQ(stranger.exit_status, 2) << stranger.text;
}

}  // namespace
