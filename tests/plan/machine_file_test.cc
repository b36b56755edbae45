// The machine file is used only if it is this user's own and of this machine; otherwise the reason is named.
// labels: unit
#include "plan/machine_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plan/calibration.h"
#include "plan/environment_variable.h"

namespace rondo {
namespace {

using testing::EnvironmentVariable;

CostModel other_costs() {
  CostModel m = built_in_costs();
  m.near_bytes = 654321;
  for (double& c : m.spread) c *= 1.5;
  return m;
}

class MachineFile : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    path_ = std::string(folder_) + "/cache/rondo/machine";
    ASSERT_TRUE(write_machine_file(path_, other_costs()).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void expect_refused(const std::string& why) {
    const auto found = read_machine_file(path_);
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.status().message().find(why), std::string_view::npos) << found.status().to_string();
    EXPECT_NE(found.status().message().find(path_), std::string_view::npos) << found.status().to_string();
  }
  void replace(const std::string& before, const std::string& after) {
    std::string text((std::istreambuf_iterator<char>(std::ifstream(path_).rdbuf())), {});
    ASSERT_NE(text.find(before), text.npos);
    text.replace(text.find(before), before.size(), after);
    std::ofstream(path_, std::ios::trunc) << text;
  }
  char folder_[64] = "/tmp/rondo_machine_file_test_XXXXXX";
  std::string path_;
};

TEST_F(MachineFile, IsReadAsItWasWritten) {
  const auto found = read_machine_file(path_);
  ASSERT_TRUE(found.ok() && *found) << found.status().to_string();
  EXPECT_EQ(**found, other_costs());
  struct stat facts {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600u);
  ASSERT_EQ(stat(std::filesystem::path(path_).parent_path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700u);
  EXPECT_TRUE(write_machine_file(path_, built_in_costs()).ok());
  EXPECT_EQ(**read_machine_file(path_), built_in_costs());
}

// The constants depend on the distance of the cores. A file of another distance is not used.
TEST_F(MachineFile, IsOfOneRangeOfHandovers) {
  EXPECT_NE(machine_name().find(", hand-over "), std::string::npos) << machine_name();
  if (machine_name().find("hand-over unknown") != std::string::npos) GTEST_SKIP() << "one core, or other work";
  replace(", hand-over ", ", hand-over 1");
  expect_refused("another machine");
}

TEST_F(MachineFile, ThereMayBeNone) {
  const auto found = read_machine_file(path_ + "2");
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(*found);
}

TEST_F(MachineFile, IsRefusedIfOthersMayWriteIt) {
  ASSERT_EQ(chmod(path_.c_str(), 0620), 0);
  expect_refused("only this user may write");
  ASSERT_EQ(chmod(path_.c_str(), 0602), 0);
  expect_refused("mode 602");
}

TEST_F(MachineFile, IsRefusedIfItIsALinkOrNoFile) {
  const std::string target = path_ + "2";
  std::filesystem::rename(path_, target);
  std::filesystem::create_symlink(target, path_);
  expect_refused("cannot be read");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  expect_refused("not a file");
}

TEST_F(MachineFile, OfAnotherMachineOrMalformedIsRefused) {
  replace("machine = ", "machine = Another ");
  expect_refused("another machine");
  replace("spread.call", "spread.cell");
  expect_refused("malformed");
  std::ofstream(path_, std::ios::trunc) << "rondo_calibration = 99\n";
  expect_refused("another machine or version");
}

TEST_F(MachineFile, IsNotWrittenWhereOthersMayWrite) {
  const std::string folder = std::filesystem::path(path_).parent_path();
  ASSERT_EQ(chmod(folder.c_str(), 0770), 0);
  const Status s = write_machine_file(path_, built_in_costs());
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.message().find("only this user may write"), std::string_view::npos) << s.to_string();
  EXPECT_EQ(**read_machine_file(path_), other_costs());
  std::filesystem::remove_all(folder);
  std::filesystem::create_symlink(folder_, folder);
  EXPECT_FALSE(write_machine_file(path_, built_in_costs()).ok());
}

TEST_F(MachineFile, CannotBeWrittenBelowAFile) {
  const Status s = write_machine_file(path_ + "/rondo/machine", built_in_costs());
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.message().find(path_), std::string_view::npos) << s.to_string();
}

TEST_F(MachineFile, ServesIfThereIsNoCalibration) {
  const EnvironmentVariable home("HOME", folder_), config("XDG_CONFIG_HOME", ""), no_file("RONDO_CONFIG", "");
  const EnvironmentVariable cache("XDG_CACHE_HOME", std::string(folder_) + "/cache"), probe("RONDO_PROBE", "on");
  std::filesystem::remove(path_);
  std::string from;
  EXPECT_FALSE(*known_costs(&from));
  EXPECT_NE(from.find("next communicator measures"), from.npos) << from;
  ASSERT_TRUE(write_machine_file(machine_file_path(), other_costs()).ok());
  EXPECT_EQ((*known_costs(&from))->costs, other_costs());
  EXPECT_EQ(from, machine_file_path());
  EXPECT_EQ(from.find(folder_), 0u) << from;
  {
    const EnvironmentVariable off("RONDO_PROBE", "off");
    EXPECT_EQ((*known_costs(&from))->costs, built_in_costs());
    EXPECT_EQ(from, "built in");
  }
  {
    const EnvironmentVariable off("RONDO_CALIBRATION", "off");
    EXPECT_EQ((*known_costs(&from))->costs, built_in_costs());
  }
  ASSERT_EQ(chmod(machine_file_path().c_str(), 0666), 0);
  EXPECT_FALSE(*known_costs(&from));
  EXPECT_NE(from.find("only this user may write"), from.npos) << from;
  // A default calibration comes first, unless it is of another processor.
  Calibration c;
  sign(c);
  c.costs.near_bytes = 777;
  std::filesystem::create_directories(std::string(folder_) + "/.config/rondo");
  std::ofstream(std::string(folder_) + "/.config/rondo/calibration") << format_calibration(c);
  EXPECT_EQ((*known_costs(&from))->costs.near_bytes, 777u);
  c.cpu = "Another processor";
  std::ofstream(std::string(folder_) + "/.config/rondo/calibration") << format_calibration(c);
  ASSERT_EQ(chmod(machine_file_path().c_str(), 0600), 0);
  EXPECT_EQ((*known_costs(&from))->costs, other_costs());
  EXPECT_EQ(from, machine_file_path());
  const EnvironmentVariable off("RONDO_PROBE", "off");
  EXPECT_EQ((*known_costs(&from))->costs, built_in_costs());
  EXPECT_NE(from.find("Another processor"), from.npos) << from;
}

}  // namespace
}  // namespace rondo
