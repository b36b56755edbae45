// Jobs on several hosts as their launchers start them: every rank is a process on its host that gets its rank and rank
// 0's address only from variables.
// labels: mp
// timeout: 180
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "bootstrap/socket.h"
#include "rondo/communicator.h"
#include "support/fake_torch_store.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

constexpr int kRanks = 4, kRanksPerHost = 2;
constexpr IpAddress kHost0 = {.bytes = {10, 77, 0, 1}};

using Variables = std::map<std::string, std::string>;

Variables with(Variables v, const Variables& more) {
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}

struct Launcher {
  std::string name;
  std::function<Variables(Rank)> variables;
  bool agent_store = false;
};

Variables torchrun(Rank rank) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(kRanks)},
          {"LOCAL_RANK", std::to_string(rank % kRanksPerHost)},
          {"LOCAL_WORLD_SIZE", std::to_string(kRanksPerHost)},
          {"MASTER_ADDR", "10.77.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}
Variables torchrun_with_store(Rank rank) { return with(torchrun(rank), {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}); }
Variables srun(Rank rank) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", std::to_string(rank % kRanksPerHost)},
          {"SLURM_NODEID", std::to_string(rank / kRanksPerHost)},
          {"SLURM_JOB_ID", "42"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", std::to_string(kRanks)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(kRanks)},
          {"SLURM_NNODES", "2"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"MASTER_ADDR", "10.77.0.1"},
          {"RONDO_SECRET", "of the batch script"}};
}
Variables open_mpi(Rank rank) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(kRanks)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % kRanksPerHost)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(kRanksPerHost)},
          {"PMIX_RANK", std::to_string(rank)},
          {"PMIX_NAMESPACE", "prterun-node1-4711@1"},
          {"MASTER_ADDR", "10.77.0.1"}};
}
Variables mpich(Rank rank) {
  return {{"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", std::to_string(kRanks)},
          {"MPI_LOCALRANKID", std::to_string(rank % kRanksPerHost)},
          {"MPI_LOCALNRANKS", std::to_string(kRanksPerHost)},
          {"MASTER_ADDR", "10.77.0.1"},
          {"RONDO_SECRET", "of the user"}};
}

class LaunchOnHosts : public ::testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
  }
  // Runs `body` for each rank on its host with its variables.
  static void launch(const std::function<Variables(Rank)>& variables, const std::function<Status(Rank)>& body) {
    const SpawnOptions options;
    report(run_processes_bare(
               kRanks,
               [&](Rank rank) -> Status {
                 if (!test_hosts().enter(rank / kRanksPerHost))
                   return Status(StatusCode::kSystem, "cannot enter the test host");
                 for (const auto& [name, value] : variables(rank)) ::setenv(name.c_str(), value.c_str(), 1);
                 return body(rank);
               },
               options),
           options);
  }
};

TEST_P(LaunchOnHosts, RanksMeetAndReduce) {
  launch(GetParam().variables, [](Rank rank) -> Status {
    std::optional<FakeTorchStore> store;  // torchrun's agent on the first host provides it
    if (rank == 0 && GetParam().agent_store) store.emplace(kHost0, 29500);
    for (int round = 0; round < 2; ++round) {
      RONDO_TRY_ASSIGN(const auto comm, Communicator::init_env());
      EXPECT_EQ(comm->rank(), rank);
      EXPECT_EQ(comm->size(), kRanks);
      EXPECT_EQ(comm->transport(), "shm+tcp");
      EXPECT_TRUE(works(*comm));
      const std::string plan = comm->explain_plan(Collective::kAllReduce, 1000, Dtype::kFloat32, Op::kSum);
      EXPECT_NE(plan.find("hosts 2x2"), std::string::npos) << plan;
      RONDO_TRY(comm->barrier());
    }
    return {};
  });
}

INSTANTIATE_TEST_SUITE_P(Of, LaunchOnHosts,
                         ::testing::Values(Launcher{"torchrun_with_its_agents_store", torchrun_with_store, true},
                                           Launcher{"torchrun_without_store", torchrun}, Launcher{"srun", srun},
                                           Launcher{"mpirun_of_open_mpi", open_mpi},
                                           Launcher{"mpiexec_of_mpich", mpich}),
                         [](const auto& info) { return info.param.name; });

using LaunchOnHostsFails = LaunchOnHosts;

TEST_F(LaunchOnHostsFails, WhereNobodySaysWhereRankZeroIs) {
  const auto lost = [](Rank rank) { return with(srun(rank), {{"MASTER_ADDR", ""}}); };
  launch(lost, [](Rank) -> Status {
    EXPECT_TRUE(fails_with(Communicator::init_env().status(), StatusCode::kInvalidArgument,
                           {"MASTER_ADDR is not set", "scontrol show hostnames"}));
    return {};
  });
}

// The last rank has another secret: it is refused, and the others name it at their deadline. Rank 0 stays until they
// have the error, because the rendezvous ends with its process.
TEST_F(LaunchOnHostsFails, WhereARankHasAnotherSecret) {
  Shared<SharedCounter> num_ended;
  const auto one_guesses = [](Rank rank) {
    return rank == kRanks - 1 ? with(srun(rank), {{"RONDO_SECRET", "a guess"}}) : srun(rank);
  };
  launch(one_guesses, [&](Rank rank) -> Status {
    Config config;
    config.init_deadline_s = 3;
    const Status status = Communicator::init_env(config).status();
    num_ended->add();
    EXPECT_TRUE(num_ended->wait_at_least(kRanks, 30));
    const bool guessed = rank == kRanks - 1;
    EXPECT_TRUE(guessed ? fails_with(status, StatusCode::kUnauthorized, {})
                        : fails_with(status, StatusCode::kTimeout, {"rank 3 has not joined"}));
    return {};
  });
}

}  // namespace
}  // namespace rondo::testing
