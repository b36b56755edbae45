// examples/02_launch as its README starts it: under both MPIs, and in the environments of srun and torchrun. A fake
// srun also runs the batch script.
// labels: mp
// timeout: 240
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "bootstrap/socket.h"
#include "mpi/programs.h"
#include "support/launchers.h"

namespace rondo::testing {
namespace {

namespace fs = std::filesystem;

void expect_says(const Launched& launched, std::initializer_list<const char*> words) {
  EXPECT_EQ(launched.exit_status, 0) << launched.output;
  for (const char* word : words)
    EXPECT_NE(launched.output.find(word), std::string::npos) << "'" << word << "' is missing in:\n" << launched.output;
}

std::string free_port() {
  auto port = listen_tcp({IpAddress{.bytes = {127, 0, 0, 1}}}, 0);
  return port.ok() ? std::to_string(port->port) : "29500";
}

// Three concurrent ranks as children of a shell, each with `variables`, in which $r is its rank.
Launched start_three(const std::string& variables) {
  return run_command("for r in 0 1 2; do " + variables +
                     " timeout 60 '" RONDO_EXAMPLE_LAUNCH
                     "' & all=\"$all $!\"; done; for p in $all; do wait $p || exit 1; done");
}

class LaunchExampleUnder : public ::testing::TestWithParam<MpiLauncher> {};

TEST_P(LaunchExampleUnder, ALauncher) {
  const MpiLauncher& mpi = GetParam();
  if (!installed(mpi.program)) GTEST_SKIP() << mpi.name << "'s " << mpi.program << " is not installed";
  expect_says(run_command("timeout 60 " + mpi.ranks(3) + " '" RONDO_EXAMPLE_LAUNCH "'"),
              {"rank 2 of 3", "through: shm\n", "forecast", "every element of every rank is 6", "bus bandwidth"});
}

TEST_P(LaunchExampleUnder, AnMpiWithCommunicatorsOfIts) {
  if (const std::string why = why_no_programs(GetParam()); !why.empty()) GTEST_SKIP() << why;
  expect_says(run_command("timeout 60 " + GetParam().ranks(3) + " '" + mpi_program("mpi_comm", GetParam()) + "'"),
              {"rank 2 of 3", "every element of every rank is 6", "host of rank 0: 3 ranks"});
}

INSTANTIATE_TEST_SUITE_P(Of, LaunchExampleUnder, ::testing::Values(kOpenMpi, kMpich),
                         [](const auto& info) { return info.param.short_name; });

TEST(LaunchExample, InSrunsEnvironmentOnOneNode) {
  expect_says(
      start_three("SLURM_PROCID=$r SLURM_NTASKS=3 SLURM_LOCALID=$r SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_JOB_ID=" +
                  std::to_string(::getpid())),
      {"rank 2 of 3", "every element of every rank is 6"});
}

TEST(LaunchExample, InTorchrunsEnvironment) {
  expect_says(
      start_three("RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r LOCAL_WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT=29500 "
                  "TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=False RONDO_PORT=" +
                  free_port()),
      {"rank 2 of 3", "every element of every rank is 6"});
}

// Fake srun and scontrol on PATH: two "nodes" that are this host, so that ranks meet at MASTER_ADDR.
class FakeSlurm {
 public:
  FakeSlurm() : folder_(fs::temp_directory_path() / ("rondo-slurm-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    write("scontrol", "[ \"$*\" = 'show hostnames n[1-2]' ] || exit 1\nprintf 'localhost\\nelsewhere\\n'");
    write("srun",
          "while [ \"${1#-}\" != \"$1\" ]; do echo \"srun $1\"; shift; done\n"
          "[ ${#RONDO_SECRET} = 32 ] || { echo no secret; exit 1; }\n"
          "for r in 0 1 2 3; do SLURM_PROCID=$r SLURM_LOCALID=$((r % 2)) SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 "
          "SLURM_STEP_NUM_NODES=2 timeout 60 \"$@\" & all=\"$all $!\"; done\n"
          "for p in $all; do wait $p || exit 1; done");
  }
  ~FakeSlurm() { fs::remove_all(folder_); }
  std::string path() const { return folder_.string(); }

 private:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  fs::path folder_;
};

TEST(LaunchExample, AsABatchJobOfSlurms) {
  if (!installed("bash") || !installed("openssl")) GTEST_SKIP() << "bash or openssl is not installed";
  const FakeSlurm slurm;
  expect_says(
      run_command("PATH='" + slurm.path() +
                  "':$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST='n[1-2]' "
                  "SLURM_CPUS_PER_TASK=4 RONDO_PORT=" +
                  free_port() +
                  " PROGRAM='" RONDO_EXAMPLE_LAUNCH "' bash '" RONDO_SOURCE_DIR "/examples/02_launch/job.sbatch'"),
      {"srun --cpus-per-task=4", "srun --cpu-bind=cores", "rank 3 of 4", "every element of every rank is 10"});
}

}  // namespace
}  // namespace rondo::testing
