// rondo/mpi.h under Open MPI and MPICH: launched programs, each compiled by that MPI's mpicxx (program.cc).
// labels: mp
// timeout: 240
#include <gtest/gtest.h>

#include <string>

#include "mpi/programs.h"

namespace rondo::testing {
namespace {

class MpiCommunicator : public ::testing::TestWithParam<MpiLauncher> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_programs(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
  // Every rank must have succeeded in its part of the scenario.
  static void play(const std::string& scenario, int nranks) {
    const Launched launched = run_command("timeout 60 " + GetParam().ranks(nranks) + " '" +
                                          mpi_program("program", GetParam()) + "' " + scenario);
    EXPECT_EQ(launched.exit_status, 0) << launched.output;
    for (int r = 0; r < nranks; ++r)
      EXPECT_NE(launched.output.find("\n" + scenario + ": rank " + std::to_string(r) + " is right."), std::string::npos)
          << "rank " << r << " of:\n"
          << launched.output;
  }
};

TEST_P(MpiCommunicator, OfTheWorldReducesAsMpiDoes) { play("world", 3); }
TEST_P(MpiCommunicator, OfPartsOfTheWorldHasTheirRanks) { play("split", 5); }
TEST_P(MpiCommunicator, OutlivesMpi) { play("outlives_mpi", 2); }
TEST_P(MpiCommunicator, NeedsAnInitialisedMpi) { play("before_init", 1); }
TEST_P(MpiCommunicator, RefusesAnIntercommunicatorAndTakesItMerged) { play("intercommunicator", 3); }
TEST_P(MpiCommunicator, TellsAllRanksWhyRankZeroCouldNot) { play("rank_zero_fails", 3); }
TEST_P(MpiCommunicator, PassesOnWhatMpiSays) { play("mpi_fails", 2); }
TEST_P(MpiCommunicator, NamesTypesAndOperatorsThatItLacks) { play("unknown_types", 1); }

INSTANTIATE_TEST_SUITE_P(Under, MpiCommunicator, ::testing::Values(kOpenMpi, kMpich),
                         [](const auto& info) { return info.param.short_name; });

}  // namespace
}  // namespace rondo::testing
