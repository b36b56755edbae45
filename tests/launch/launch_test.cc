// Launchers: reading their environments (pure), and the four ways to meet.
// labels: unit mp
// timeout: 120
#include "launch/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/socket.h"
#include "launch/id_handout.h"
#include "support/fake_torch_store.h"

namespace rondo {
namespace {

using Variables = std::map<std::string, std::string>;
using Meeting = LaunchInfo::Meeting;

Expected<LaunchInfo> read(const Variables& variables, int launcher_pid = 77) {
  return launch_from_lookup(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      launcher_pid);
}

void expect_refusal(const Variables& variables, std::initializer_list<std::string_view> facts) {
  const Status s = read(variables).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.to_string();
  for (const std::string_view fact : facts)
    EXPECT_NE(s.message().find(fact), std::string_view::npos) << "'" << fact << "' is missing in: " << s.to_string();
}

const Variables kTorchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "abc"}, {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "1204748289"}};
const Variables kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "42"},
                          {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "1"}};

Variables with(Variables v, const Variables& more) {
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}
Variables without(Variables v, const std::string& name) {
  v.erase(name);
  return v;
}

TEST(LaunchEnvironment, Torchrun) {
  auto info = read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "torchrun");
  EXPECT_EQ(info->rank, 3);
  EXPECT_EQ(info->nranks, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->local_nranks, 2);
  EXPECT_EQ(info->meeting, Meeting::kTorchStore);
  EXPECT_EQ(info->master_port, 29500);
  EXPECT_EQ(info->job, "torchrun abc 2");

  info = read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->meeting, Meeting::kDerivedId);
  EXPECT_EQ(info->master_port, 29501) << "the port after the one of torch's own store";
  info = read(with(kTorchrun, {{"MASTER_PORT", "65535"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->master_port, 65534);
  info = read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"RONDO_PORT", "4000"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->meeting, Meeting::kDerivedId);
  EXPECT_EQ(info->master_port, 4000);
}

TEST(LaunchEnvironment, TheSecretIsTheUsersOrFollowsFromTheJob) {
  const auto plain = read(kTorchrun), other_job = read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "abd"}}));
  const auto chosen = read(with(kTorchrun, {{"RONDO_SECRET", "s"}}));
  ASSERT_OK(plain.status());
  ASSERT_OK(other_job.status());
  ASSERT_OK(chosen.status());
  EXPECT_NE(plain->secret, other_job->secret);
  EXPECT_EQ(chosen->secret, "user s");
  EXPECT_EQ(chosen->how.find("user s"), std::string::npos) << "messages must not show the secret";
}

TEST(LaunchEnvironment, OpenMpi) {
  auto info = read(kOpenMpi);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->rank, 2);
  EXPECT_EQ(info->nranks, 4);
  EXPECT_EQ(info->local_rank, 2);
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  EXPECT_EQ(info->job, "Open MPI 1204748289");
  info = read(with(without(kOpenMpi, "PMIX_NAMESPACE"), {{"OMPI_MCA_ess_base_jobid", "9"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->job, "Open MPI 9");
  info = read(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "7000"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->meeting, Meeting::kDerivedId);
  EXPECT_EQ(info->master_port, 7001);
  expect_refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), {"MASTER_ADDR is not set"});
  // Open MPI 5, whose jobs are PRRTE's: names with other characters, and PMIX_RANK besides its own.
  const Variables five = with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-node1-4711@1"}, {"PMIX_RANK", "2"}});
  info = read(five);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->job, "Open MPI prterun-node1-4711@1");
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  const Variables two_hosts = with(five, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "n0"}});
  info = read(two_hosts);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->master_addr, "n0");
  EXPECT_EQ(info->master_port, read(with(two_hosts, {{"OMPI_COMM_WORLD_RANK", "0"}}))->master_port);
  EXPECT_NE(info->secret, read(with(two_hosts, {{"PMIX_NAMESPACE", "prterun-node1-4711@2"}}))->secret);
  expect_refusal(without(without(five, "PMIX_NAMESPACE"), "PMIX_RANK"), {"PMIX_NAMESPACE", "RONDO_JOB_ID"});
  // The variables of PRRTE's own launcher for a program that does not use MPI.
  expect_refusal({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun-node1-4711@1"}}, {"PMIX_RANK", "mpirun", "MPI_Comm"});
}

TEST(LaunchEnvironment, Mpich) {
  auto info = read(kMpich, 1234);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->rank, 1);
  EXPECT_EQ(info->nranks, 3);
  EXPECT_EQ(info->job, "MPICH 1234");
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  info = read(with(kMpich, {{"RONDO_JOB_ID", "mine"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->job, "MPICH mine");
  const Variables two_hosts = with(kMpich, {{"PMI_SIZE", "6"}, {"MASTER_ADDR", "n0"}});
  expect_refusal(two_hosts, {"RONDO_SECRET"});
  info = read(with(two_hosts, {{"RONDO_SECRET", "x"}}));
  ASSERT_OK(info.status());
  EXPECT_GE(info->master_port, 20000);  // derived from the job: equal on all ranks, whatever their launcher's pid
  EXPECT_EQ(info->master_port, read(with(two_hosts, {{"RONDO_SECRET", "x"}}), 5)->master_port);
}

TEST(LaunchEnvironment, Slurm) {
  auto info = read(kSlurm);
  ASSERT_OK(info.status());
  EXPECT_EQ(info->rank, 5);
  EXPECT_EQ(info->nranks, 6);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->job, "Slurm 42.0");
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  // A step with one node in a job with two.
  info = read(with(kSlurm, {{"SLURM_NNODES", "2"}, {"SLURM_STEP_NUM_NODES", "1"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  const Variables two_nodes = with(kSlurm, {{"SLURM_NNODES", "2"}});
  expect_refusal(two_nodes, {"MASTER_ADDR", "scontrol show hostnames"});
  info = read(with(two_nodes, {{"MASTER_ADDR", "n0"}, {"RONDO_SECRET", "s"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->meeting, Meeting::kDerivedId);
  EXPECT_EQ(info->master_addr, "n0");
  EXPECT_EQ(info->secret, "user s");
  EXPECT_GE(info->master_port, 20000);
  const Variables other_rank = with(two_nodes, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"MASTER_ADDR", "n0"}});
  EXPECT_EQ(info->master_port, read(other_rank)->master_port);
  EXPECT_NE(info->master_port, read(with(other_rank, {{"SLURM_STEP_ID", "1"}}))->master_port);
  // The step counts, not the job: 2 of its 6 tasks, on one of its nodes.
  info = read(with(two_nodes, {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->nranks, 2);
  EXPECT_EQ(info->meeting, Meeting::kLocalSocket);
  // srun --mpi=pmi2 sets PMI_RANK too.
  info = read(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}}));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "Slurm");
  info = read(with(kSlurm, {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.42.0"}}));  // --mpi=pmix
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "Slurm");
  // An sbatch script outside of srun has one process, whatever SLURM_NTASKS is.
  expect_refusal(without(kSlurm, "SLURM_STEP_ID"), {"SLURM_STEP_ID", "srun"});
}

TEST(LaunchEnvironment, TheInnerLauncherWins) {
  auto info = read(with(kSlurm, kOpenMpi));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "Open MPI");
  info = read(with(kSlurm, kMpich));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "MPICH");
  info = read(with(kOpenMpi, kTorchrun));
  ASSERT_OK(info.status());
  EXPECT_EQ(info->launcher, "torchrun");
}

TEST(LaunchEnvironment, WhatIsMissingOrWrongIsNamed) {
  expect_refusal({{"RANK", "0"}}, {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "torchrun"});
  expect_refusal(with(kTorchrun, {{"RANK", "eight"}}), {"RANK='eight'"});
  expect_refusal(with(kTorchrun, {{"RANK", "8"}}), {"RANK=8", "WORLD_SIZE=8"});
  expect_refusal(with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE='0'"});
  expect_refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT='70000'"});
  expect_refusal({{"RONDO_RANK", "0"}}, {"RONDO_NRANKS is not set", "RONDO_UNIQUE_ID is not set"});
  expect_refusal({{"RONDO_RANK", "0"}, {"RONDO_NRANKS", "1"}, {"RONDO_UNIQUE_ID", "12xy"}}, {"RONDO_UNIQUE_ID", "256"});
}

TEST(LaunchEnvironment, WithoutALauncherThereIsOneRank) {
  // Settings for the meeting point may come from a file for all programs. They do not imply several ranks.
  const Variables settings = {{"RONDO_PORT", "4000"}, {"RONDO_SECRET", "s"}, {"RONDO_STORE", "file:///tmp"}};
  for (const Variables& none : {Variables{}, Variables{{"RANK", ""}, {"OMPI_COMM_WORLD_SIZE", ""}}, settings}) {
    const auto info = read(none);
    ASSERT_OK(info.status());
    EXPECT_EQ(info->rank, 0);
    EXPECT_EQ(info->nranks, 1);
    EXPECT_EQ(info->local_rank, 0);
    EXPECT_EQ(info->local_nranks, 1);
    EXPECT_EQ(info->launcher, "none");
    EXPECT_EQ(info->meeting, Meeting::kAlone);
    EXPECT_NE(info->how.find("no launcher"), std::string::npos) << info->how;
  }
}

// A launcher's environment without its rank must not count as a single rank.
TEST(LaunchEnvironment, PartOfALaunchersVariablesIsAnErrorThatNamesTheRest) {
  for (const char* name : {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    expect_refusal({{name, "1"}}, {"torchrun", "RANK is not set", "a single rank"});
  expect_refusal({{"MASTER_ADDR", "node1"}}, {"RANK is not set", "WORLD_SIZE is not set", "a single rank"});
  expect_refusal({{"MASTER_PORT", "29500"}}, {"RANK is not set", "MASTER_ADDR is not set"});
  expect_refusal(without(kTorchrun, "RANK"), {"RANK is not set"});
  expect_refusal(without(kTorchrun, "WORLD_SIZE"), {"WORLD_SIZE is not set"});
  expect_refusal(without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), {"mpirun", "OMPI_COMM_WORLD_RANK is not set"});
  expect_refusal(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), {"mpirun", "OMPI_COMM_WORLD_SIZE is not set"});
  expect_refusal(without(kMpich, "PMI_RANK"), {"mpiexec", "PMI_RANK is not set"});
  expect_refusal(without(kMpich, "PMI_SIZE"), {"mpiexec", "PMI_SIZE is not set"});
  // A shell of salloc has the job's number and no rank.
  expect_refusal({{"SLURM_JOB_ID", "42"}, {"SLURM_NTASKS", "6"}}, {"SLURM_PROCID is not set", "srun"});
  expect_refusal(without(kSlurm, "SLURM_NTASKS"), {"SLURM_NTASKS is not set"});
  expect_refusal({{"RONDO_NRANKS", "2"}}, {"RONDO_RANK is not set", "RONDO_UNIQUE_ID is not set"});
  expect_refusal({{"RONDO_LOCAL_RANK", "0"}}, {"RONDO_RANK is not set", "RONDO_NRANKS is not set"});
}

TEST(LaunchEnvironment, UniqueIdsSurviveHex) {
  const rondo_unique_id id = testing::new_id();
  const auto back = unique_id_from_hex(unique_id_to_hex(id));
  ASSERT_OK(back.status());
  EXPECT_EQ(std::string_view(back->bytes, 128), std::string_view(id.bytes, 128));
}

// Joins every rank of a job twice in a row, as threads, with each rank's own environment.
void join_job(int nranks, const std::function<Variables(Rank)>& environment) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < nranks; ++r)
    threads.emplace_back([&, r] {
      const auto info = read(environment(r));
      ASSERT_OK(info.status());
      for (int round = 0; round < 2; ++round) {
        auto b = join_launch(*info, {.deadline_s = 30});
        ASSERT_OK(b.status());
        EXPECT_EQ((*b)->rank(), r);
        std::vector<std::string> all;
        ASSERT_OK((*b)->all_gather(&r, sizeof(r), &all));
        EXPECT_EQ(all.size(), static_cast<size_t>(nranks));
        (*b)->say_goodbye();
      }
    });
  for (std::thread& t : threads) t.join();
}

std::string unique_name() { return std::to_string(::getpid()); }

TEST(LaunchMeeting, AtALocalSocket) {
  join_job(6, [](Rank r) {
    return with(kSlurm, {{"SLURM_PROCID", std::to_string(r)}, {"SLURM_JOB_ID", unique_name()}});
  });
}

TEST(LaunchMeeting, OneRankWithoutALauncherMeetsNobody) {
  join_job(1, [](Rank) { return Variables{}; });
}

TEST(LaunchMeeting, AtADerivedAddress) {
  auto port = listen_tcp({IpAddress{.bytes = {127, 0, 0, 1}}}, 0);  // a free one
  ASSERT_OK(port.status());
  const std::string number = std::to_string(port->port);
  port->sockets.clear();
  join_job(4, [&](Rank r) {
    return with(kTorchrun, {{"RANK", std::to_string(r)}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "localhost"},
                            {"RONDO_PORT", number}, {"RONDO_SECRET", "of this test"}});
  });
}

TEST(LaunchMeeting, ATakenPortIsNamed) {
  auto taken = listen_tcp({IpAddress{.bytes = {127, 0, 0, 1}}}, 0);
  ASSERT_OK(taken.status());
  const auto info = read(with(kTorchrun, {{"RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"},
                                          {"RONDO_PORT", std::to_string(taken->port)}}));
  ASSERT_OK(info.status());
  const Status s = join_launch(*info, {.deadline_s = 5}).status();
  EXPECT_EQ(s.code(), StatusCode::kSystem);
  EXPECT_NE(s.message().find("RONDO_PORT"), std::string_view::npos) << s.to_string();
}

TEST(LaunchMeeting, MissingRanksAreNamedToAllAtTheLocalSocket) {
  const std::string name = "rondo-test-" + unique_name();
  const Deadline deadline(0.3, nullptr);
  Status fetched;
  std::thread other([&] { fetched = fetch_id(name, 2, deadline).status(); });
  const Status handed = hand_out_id(name, rondo_unique_id{}, 4, deadline);
  other.join();
  for (const Status& s : {handed, fetched}) {
    EXPECT_EQ(s.code(), StatusCode::kTimeout) << s.to_string();
    EXPECT_NE(s.message().find("ranks 1, 3"), std::string_view::npos) << s.to_string();
  }
}

TEST(LaunchMeeting, ASecondRankZeroIsRefused) {
  const std::string name = "rondo-test-zero-" + unique_name();
  const auto first = listen_abstract(name);
  ASSERT_OK(first.status());
  const Status s = hand_out_id(name, rondo_unique_id{}, 2, Deadline(5, nullptr));
  EXPECT_EQ(s.code(), StatusCode::kSystem);
  EXPECT_NE(s.message().find("another rank 0"), std::string_view::npos) << s.to_string();
}

TEST(LaunchMeeting, ThroughTorchsStore) {
  testing::FakeTorchStore store;
  join_job(4, [&](Rank r) {
    return with(kTorchrun, {{"RANK", std::to_string(r)}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", store.port()}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  });
  EXPECT_EQ(store.num_keys(), 4u + 2u);  // a counter per rank, an id per communicator
}

TEST(LaunchMeeting, AnAbsentRankZeroIsNamedByTheWaitAtTorchsStore) {
  testing::FakeTorchStore store;
  const auto info = read(with(kTorchrun, {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", store.port()},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  ASSERT_OK(info.status());
  const Status s = join_launch(*info, {.deadline_s = 0.3}).status();
  EXPECT_EQ(s.code(), StatusCode::kTimeout);
  EXPECT_NE(s.message().find("rank 0's unique id"), std::string_view::npos) << s.to_string();
}

}  // namespace
}  // namespace rondo
