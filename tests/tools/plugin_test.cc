// `rondo check|explain|perf --plugin FILE.so`: an algorithm from outside of the library is proven, printed and measured
// like the library's own, and a wrong one is refused.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "launch/launch.h"
#include "rondo/rondo.h"

namespace {

struct Ended {
  int exit_status = -1;
  std::string text;  // stdout and stderr
};

Ended end_of(FILE* pipe) {
  Ended run;
  EXPECT_NE(pipe, nullptr);
  if (pipe == nullptr) return run;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) run.text.append(buffer, n);
  const int how = pclose(pipe);
  run.exit_status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return run;
}

Ended run_rondo(const std::string& arguments) {
  return end_of(popen((std::string(RONDO_CLI) + " " + arguments + " 2>&1").c_str(), "r"));
}

const std::string kPlugin = " --plugin " RONDO_OWN_ALGORITHM " ", kTwin = " --plugin " RONDO_TWIN_ALGORITHM " ";

TEST(Plugin, IsChecked) {
  const Ended run = run_rondo("check" + kPlugin + "all_reduce --algo star --max-ranks 20");
  EXPECT_EQ(run.exit_status, 0) << run.text;
  EXPECT_NE(run.text.find("star                  all_reduce         1..20       2           S"), std::string::npos)
      << run.text;
}

TEST(Plugin, IsExplained) {
  const Ended run = run_rondo("explain" + kPlugin + "all_reduce --algo star --ranks 3 --elements 6");
  EXPECT_EQ(run.exit_status, 0) << run.text;
  EXPECT_NE(run.text.find("2 steps: everything to rank 0, the sum to all"), std::string::npos) << run.text;
  EXPECT_NE(run_rondo("explain --list" + kPlugin).text.find("star"), std::string::npos);
  EXPECT_EQ(run_rondo("explain --list").text.find("star"), std::string::npos) << "without the plugin there is none";
}

TEST(Plugin, IsBenchmarkedByThreadsAndProcesses) {
  for (const char* world : {"--threads 3", "--ranks 3"}) {
    const std::string command = "perf" + kPlugin + "all_reduce --algo star " + world + " -b 8 -e 256K -f 32 -n 3";
    const Ended measured = run_rondo(command);
    EXPECT_EQ(measured.exit_status, 0) << measured.text;
    EXPECT_NE(measured.text.find("Out of bounds values : 0 OK"), std::string::npos) << measured.text;
    const Ended explained = run_rondo(command + " --explain");
    EXPECT_EQ(explained.exit_status, 0) << explained.text;
    EXPECT_NE(explained.text.find("star inline"), std::string::npos) << explained.text;
    EXPECT_NE(explained.text.find("star simple"), std::string::npos) << explained.text;
  }
}

TEST(Plugin, WrongOnesAreRefused) {
  const Ended wrong = run_rondo("explain --list --plugin " RONDO_WRONG_ALGORITHM);
  EXPECT_EQ(wrong.exit_status, 2) << wrong.text;
  EXPECT_NE(wrong.text.find("algorithm forgetful_star of all_reduce, 4 ranks"), std::string::npos) << wrong.text;
  EXPECT_NE(wrong.text.find("from rank 3"), std::string::npos) << wrong.text;
  const Ended missing = run_rondo("check --plugin ./no_such_file.so");
  EXPECT_EQ(missing.exit_status, 2);
  EXPECT_NE(missing.text.find("no_such_file.so: cannot be loaded"), std::string::npos) << missing.text;
  const Ended unauthenticated = run_rondo("check --plugin libm.so.6");
  EXPECT_EQ(unauthenticated.exit_status, 2) << unauthenticated.text;
}

TEST(Plugin, WrongOnesAreDrawnWhenAsked) {
  const std::string wrong = "explain --plugin " RONDO_WRONG_ALGORITHM " ";
  EXPECT_NE(run_rondo(wrong + "--list").text.find("rondo explain --unproven draws"), std::string::npos);
  const Ended drawn = run_rondo(wrong + "all_reduce --algo forgetful_star --ranks 4 --unproven");
  EXPECT_EQ(drawn.exit_status, 1) << drawn.text;
  EXPECT_NE(drawn.text.find("\nstep 1: reduce\n  1->0  B0\n  2->0  C0\n"), std::string::npos) << drawn.text;
  EXPECT_NE(drawn.text.find("\nwrong after step 1: star.h:24: rank 0 lane 0 pc 0 "), std::string::npos) << drawn.text;
  EXPECT_NE(drawn.text.find(
                "receives from rank 3, group 0, tag 0, which never sends such a message: it sends nothing to rank 0; "
                "add the send to rank 3, or do not wait for it\n"),
            std::string::npos)
      << drawn.text;
  const Ended elsewhere = run_rondo(wrong + "all_reduce --algo forgetful_star --ranks 3 --unproven");
  EXPECT_EQ(elsewhere.exit_status, 1) << elsewhere.text;
  EXPECT_NE(elsewhere.text.find("right with these ranks, but wrong elsewhere: algorithm forgetful_star of all_reduce, "
                                "4 ranks: star.h:24: "),
            std::string::npos)
      << elsewhere.text;
  const Ended right = run_rondo("explain" + kPlugin + "all_reduce --algo star --ranks 3 --unproven");
  EXPECT_EQ(right.exit_status, 0) << right.text;
  EXPECT_NE(right.text.find("\nproven for these ranks"), std::string::npos) << right.text;
}

TEST(Plugin, SeveralStandSideBySide) {
  const Ended both = run_rondo("check --max-ranks 5" + kPlugin + kTwin + "all_reduce --max-pair-ranks 2");
  EXPECT_EQ(both.exit_status, 0) << both.text;
  EXPECT_NE(both.text.find("\nstar "), std::string::npos) << both.text;
  EXPECT_NE(both.text.find("\ntwin_star "), std::string::npos) << both.text;
  const Ended twice = run_rondo("explain --list" + kPlugin + kTwin + kPlugin);
  EXPECT_EQ(twice.exit_status, 2) << twice.text;
  EXPECT_NE(twice.text.find("there is an algorithm star of all_reduce already"), std::string::npos) << twice.text;
}

/// A rank started by hand; the shell ends after it.
std::string by_hand(const std::string& id, int rank, const std::string& plugins) {
  return "RONDO_UNIQUE_ID=" + id + " RONDO_NRANKS=2 RONDO_RANK=" + std::to_string(rank) +
         " RONDO_INIT_TIMEOUT_S=60 " RONDO_CLI " perf all_reduce -b 8 -e 8 -n 1" + plugins + " 2>&1";
}

TEST(Plugin, RanksWithDifferentOnesAreNamedWhenTheyMeet) {
  for (const std::string& other : {std::string(), kPlugin + kTwin, kTwin + kPlugin}) {
    rondo_unique_id id;
    ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK);
    const std::string hex = rondo::unique_id_to_hex(id);
    Ended ended[2];
    FILE* pipe = popen(by_hand(hex, 1, other).c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    ended[0] = end_of(popen(by_hand(hex, 0, kPlugin).c_str(), "r"));
    ended[1] = end_of(pipe);
    for (const Ended& rank : ended) {
      EXPECT_NE(rank.exit_status, 0) << rank.text;
      EXPECT_NE(rank.text.find("ranks disagree on their own algorithms"), std::string::npos) << rank.text;
      EXPECT_NE(rank.text.find("rank 0 has star of all_reduce (#"), std::string::npos) << rank.text;
      EXPECT_NE(rank.text.find(other.empty() ? "rank 1 has not set" : "twin_star of all_reduce"), std::string::npos)
          << rank.text;
    }
  }
}

}  // namespace
