// `rondo calibrate --network` as ranks of a launcher, on two hosts and on one.
// labels: mp
// timeout: 240
// alone
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "plan/calibration.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

class CalibrateHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Two ranks with torchrun's variables. Returns rank 0's output; the shell's status covers both. --force, because this
  // does not test a busy machine.
  std::string run(int hosts, int* status) {
    std::string command = "export WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29533; ";
    for (const int rank : {1, 0}) {
      command += "RANK=" + std::to_string(rank) + " LOCAL_RANK=" + std::to_string(hosts == 2 ? 0 : rank) +
                 " LOCAL_WORLD_SIZE=" + std::to_string(hosts == 2 ? 1 : 2) + " timeout 200 " +
                 test_hosts().shell_prefix(hosts == 2 ? rank : 0) + " " RONDO_CLI " calibrate --network --force -o " +
                 path_ + (rank == 1 ? " > /dev/null 2>&1 & " : " 2>&1; s=$?; wait $! && exit $s");
    }
    std::FILE* const out = popen(command.c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
    *status = pclose(out);
    return text;
  }
  std::string written() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  const std::string path_ = std::filesystem::temp_directory_path() / ("rondo_network_" + std::to_string(getpid()));
};

TEST_F(CalibrateHosts, FitsWhatCountsBetweenHostsAndKeepsTheRest) {
  Calibration before;
  before.cpu = processor_name();
  before.date = "long ago";
  before.costs.spread[0] = before.costs.oversubscribed[0] = 77;
  std::ofstream(path_) << format_calibration(before) << std::flush;
  int status = -1;
  const std::string said = run(2, &status);
  ASSERT_EQ(status, 0) << said;
  EXPECT_NE(said.find("2 ranks on 2 hosts"), std::string::npos) << said;
  const auto found = parse_calibration(written());
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_NE(found->date, before.date);
  for (size_t t = 0; t < kNumCostTerms; ++t) {
    if (t < static_cast<size_t>(kFirstHostTerm)) {
      EXPECT_DOUBLE_EQ(found->costs.spread[t], before.costs.spread[t]) << kCostTerms[t].name;
      EXPECT_DOUBLE_EQ(found->costs.oversubscribed[t], before.costs.oversubscribed[t]) << kCostTerms[t].name;
      continue;
    }
    EXPECT_NE(found->costs.spread[t], before.costs.spread[t]) << kCostTerms[t].name;
    EXPECT_GT(found->costs.spread[t], 0) << kCostTerms[t].name;
    EXPECT_EQ(found->costs.spread[t], found->costs.oversubscribed[t]) << kCostTerms[t].name;
  }
}

TEST_F(CalibrateHosts, OneHostIsRefusedAndNothingIsWritten) {
  int status = 0;
  const std::string said = run(1, &status);
  EXPECT_NE(status, 0);
  EXPECT_NE(said.find("2 ranks are on one host; start them on several"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace rondo::testing
