// examples/02_launch on two hosts, started by mpirun and mpiexec. A fake ssh enters a test host.
// labels: mp
// timeout: 240
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "mpi/programs.h"
#include "support/launchers.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

namespace fs = std::filesystem;

// A program called like ssh, "[options] address command", for the first two hosts.
class FakeSsh {
 public:
  FakeSsh() : path_(fs::temp_directory_path() / ("rondo-ssh-" + std::to_string(::getpid()))) {
    std::ofstream file(path_);
    file << "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n";
    for (int h = 0; h < 2; ++h)
      file << TestHosts::address(h) << ") exec " << test_hosts().shell_prefix(h) << " sh -c \"$*\";;\n";
    file << "esac\nexit 1\n";
    file.close();
    fs::permissions(path_, fs::perms::owner_all);
  }
  ~FakeSsh() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

// Two ranks on each of two hosts. The launcher itself runs on the first.
std::string across_hosts(const MpiLauncher& mpi, const FakeSsh& ssh) {
  const std::string hosts = TestHosts::address(0) + ":2," + TestHosts::address(1) + ":2";
  const std::string here = "timeout 60 " + test_hosts().shell_prefix(0) + mpi.program + " -n 4 ";
  if (mpi.short_name == "mpich")
    return here + "-launcher ssh -launcher-exec " + ssh.path() + " -iface eth0 -hosts " + hosts;
  return here + "--allow-run-as-root --mca plm_rsh_agent " + ssh.path() +
         " --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 -x MASTER_ADDR -x RONDO_SECRET -H " + hosts;
}

class LaunchExampleOnHosts : public ::testing::TestWithParam<MpiLauncher> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
    if (!installed(GetParam().program))
      GTEST_SKIP() << GetParam().name << "'s " << GetParam().program << " is not installed";
  }
  static void expect_says(const Launched& launched, std::initializer_list<const char*> words) {
    EXPECT_EQ(launched.exit_status, 0) << launched.output;
    for (const char* word : words)
      EXPECT_NE(launched.output.find(word), std::string::npos) << "'" << word << "' is missing in:\n"
                                                               << launched.output;
  }
};

TEST_P(LaunchExampleOnHosts, ByTheLaunchersVariables) {
  const FakeSsh ssh;
  expect_says(run_command("MASTER_ADDR=" + TestHosts::address(0) + " RONDO_SECRET=ours " +
                          across_hosts(GetParam(), ssh) + " '" RONDO_EXAMPLE_LAUNCH "'"),
              {"rank 1 of 4: host0", "rank 2 of 4: host1", "through: shm+tcp", "hosts 2x2",
               "every element of every rank is 10"});
}

TEST_P(LaunchExampleOnHosts, WithCommunicatorsOfMpis) {
  if (const std::string why = why_no_programs(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const FakeSsh ssh;
  expect_says(run_command(across_hosts(GetParam(), ssh) + " '" + mpi_program("mpi_comm", GetParam()) + "'"),
              {"rank 1 of 4: host0", "rank 2 of 4: host1", "through: shm+tcp", "hosts 2x2",
               "every element of every rank is 10", "host of rank 0: 2 ranks", "host of rank 2: 2 ranks"});
}

INSTANTIATE_TEST_SUITE_P(Under, LaunchExampleOnHosts, ::testing::Values(kOpenMpi, kMpich),
                         [](const auto& info) { return info.param.short_name; });

}  // namespace
}  // namespace rondo::testing
