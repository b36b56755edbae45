// libnccl.so.2 with ranks as processes, each with its own NCCL_* variables. Every test forks before it uses the
// library, because a process reads the variables once.
//
// labels: unit mp
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "nccl/nccl_ranks.h"
#include "support/forked_child.h"
#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

using Variables = std::map<std::string, std::string>;

// Runs fn(rank) in processes with these variables. A failed expectation in one fails the test.
void run_processes(int nranks, const Variables& variables, const std::function<void(int)>& fn) {
  SpawnOptions options;
  report(run_processes_bare(
             nranks,
             [&](Rank rank) -> Status {
               for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
               fn(rank);
               return {};
             },
             options),
         options);
}

struct SharedId {
  SharedCounter made;
  ncclUniqueId id;
};

// Rank 0's id, for all ranks.
ncclUniqueId exchange(SharedId& shared, int rank) {
  if (rank == 0) {
    EXPECT_TRUE(succeeds(ncclGetUniqueId(&shared.id)));
    shared.made.add();
  }
  EXPECT_TRUE(shared.made.wait_at_least(1, 30));
  return shared.id;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string fresh_folder(const char* name) {
  const auto folder = std::filesystem::temp_directory_path() / (std::string(name) + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder.string();
}

TEST(NcclProcesses, MeetAtTheUniqueId) {
  Shared<SharedId> shared;
  run_processes(3, {}, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_TRUE(succeeds(ncclCommInitRank(&comm, 3, exchange(*shared, rank), rank)));
    expect_works(comm, 100000);
    EXPECT_TRUE(succeeds(ncclCommFinalize(comm)));
    EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  });
}

TEST(NcclProcesses, MeetAtNcclCommId) {
  const std::string place = "127.0.0.1:" + std::to_string(20000 + ::getpid() % 10000);
  run_processes(2, {{"NCCL_COMM_ID", place}}, [](int rank) {
    ncclUniqueId id;  // each process requests it; all get the same
    ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
    for (int i = 0; i < 2; ++i) {
      ncclComm_t comm = nullptr;
      ASSERT_TRUE(succeeds(ncclCommInitRank(&comm, 2, id, rank)));
      expect_works(comm);
      EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
    }
  });
}

TEST(NcclProcesses, ADeadRankIsARemoteErrorAndShrinkGoesOn) {
  Shared<SharedId> shared;
  SpawnOptions options;
  options.may_die = {1};
  report(run_processes_bare(
             3,
             [&](Rank rank) -> Status {
               ncclComm_t comm = nullptr;
               EXPECT_TRUE(succeeds(ncclCommInitRank(&comm, 3, exchange(*shared, rank), rank)));
               expect_works(comm);
               if (rank == 1) ::kill(::getpid(), SIGKILL);
               float x = 1;
               EXPECT_TRUE(fails_with(ncclRemoteError, {"rank 1"},
                                      ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr)));
               ncclResult_t state = ncclSuccess;
               EXPECT_TRUE(succeeds(ncclCommGetAsyncError(comm, &state)));
               EXPECT_EQ(state, ncclRemoteError);
               int dead[] = {1};
               ncclComm_t smaller = nullptr;
               EXPECT_TRUE(succeeds(ncclCommShrink(comm, dead, 1, &smaller, nullptr, NCCL_SHRINK_ABORT)));
               expect_works(smaller);
               EXPECT_TRUE(succeeds(ncclCommDestroy(smaller)));
               EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
               return {};
             },
             options),
         options);
}

// A deadline is ncclTimeout (8) for callers whose version has that number, and ncclRemoteError for others.
TEST(NcclProcesses, TimeoutIsSaidToWhoKnowsIt) {
  run_processes(1, {{"RONDO_INIT_TIMEOUT_S", "0.2"}}, [](int) {
    for (const unsigned version : {22907u, 23003u}) {
      ncclUniqueId id;
      ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
      ncclConfig_t config = new_config();
      config.version = version;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config)));
      const ncclResult_t expected = version >= 23003 ? ncclTimeout : ncclRemoteError;
      EXPECT_EQ(settle(comm), expected);
      EXPECT_NE(std::string(ncclGetLastError(comm)).find("rank"), std::string::npos);
      EXPECT_TRUE(succeeds(ncclCommAbort(comm)));

      config.blocking = 1;
      ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
      EXPECT_TRUE(returns(expected, ncclCommInitRankConfig(&comm, 2, id, 0, &config)));
      EXPECT_EQ(comm, nullptr);
      ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
      ASSERT_TRUE(succeeds(ncclGroupStart()));
      ASSERT_TRUE(succeeds(ncclCommInitRankConfig(&comm, 2, id, 0, &config)));
      EXPECT_TRUE(returns(expected, ncclGroupEnd()));
    }
  });
}

TEST(NcclProcesses, VariablesSteerRondoAndTheRestIsReported) {
  const std::string folder = fresh_folder("rondo_nccl_log");
  const Variables variables = {{"NCCL_DEBUG", "INFO"},    {"NCCL_DEBUG_FILE", folder + "/log.%p"},
                               {"NCCL_ALGO", "Tree"},     {"NCCL_IB_TIMEOUT", "22"},
                               {"NCCL_MAX_CTAS", "many"}, {"NCCL_PROTO", "LL128"}};
  run_processes(1, variables, [&](int) {
    ncclComm_t comms[5];                   // enough ranks that a tree and a ring differ
    ::testing::internal::CaptureStderr();  // the log goes to its file
    ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 5, nullptr)));
    ncclComm_t more[2];
    ASSERT_TRUE(succeeds(ncclCommInitAll(more, 2, nullptr)));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    const std::string log = read_file(folder + "/log." + std::to_string(::getpid()));
    for (const char* name : {"NCCL_IB_TIMEOUT", "NCCL_MAX_CTAS", "NCCL_PROTO"}) {
      const size_t first = log.find(std::string(name) + " is ignored: ");
      EXPECT_NE(first, std::string::npos) << log;
      EXPECT_EQ(log.find(std::string(name) + " is ignored", first + 1), std::string::npos) << "logged twice";
    }
    EXPECT_EQ(log.find("NCCL_ALGO is ignored"), std::string::npos);
    const char* ignored = nullptr;
    EXPECT_TRUE(succeeds(ncclParamGetParameter("RONDO_NCCL_IGNORED", &ignored, nullptr)));
    EXPECT_NE(std::string(ignored).find("NCCL_IB_TIMEOUT"), std::string::npos);
    // NCCL_ALGO=Tree restricts the planner: its forecast equals that of a call that requires the tree.
    const auto forecast = [&](const char* selection) {
      float x = 1;
      ncclCollConfig_t config = new_call_config();
      config.algSelection = selection;
      ncclSimInfo_t info = {sizeof info, NCCL_SIM_MAGIC, 23203, -1.0f};
      EXPECT_TRUE(succeeds(ncclGroupStart()));
      EXPECT_TRUE(succeeds(ncclAllReduceConfig(&x, &x, 1, ncclFloat32, ncclSum, comms[0], nullptr, &config)));
      EXPECT_TRUE(succeeds(ncclGroupSimulateEnd(&info)));
      return info.estimatedTime;
    };
    EXPECT_EQ(forecast(nullptr), forecast("tree"));
    EXPECT_NE(forecast(nullptr), forecast("ring"));
    float x = 0;  // errors are logged, too
    EXPECT_TRUE(returns(ncclInvalidArgument, ncclBroadcast(&x, &x, 1, ncclFloat32, 9, comms[0], nullptr)));
    EXPECT_NE(read_file(folder + "/log." + std::to_string(::getpid())).find("root is 9"), std::string::npos);
    for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
    for (ncclComm_t c : more) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
  });
  std::filesystem::remove_all(folder);
}

TEST(NcclProcesses, IgnoredVariablesAreSaidWithoutALogToo) {
  run_processes(1, {{"NCCL_NTHREADS", "64"}}, [](int) {
    ::testing::internal::CaptureStderr();
    ncclComm_t comm;
    ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("NCCL_NTHREADS is ignored"), std::string::npos);
    EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  });
}

TEST(NcclProcesses, AWatchdogThatAsksAgainDoesNotFillTheLog) {
  run_processes(1, {{"NCCL_DEBUG", "WARN"}}, [](int) {
    ncclComm_t comms[2];
    ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, nullptr)));
    EXPECT_TRUE(succeeds(ncclCommAbort(comms[1])));
    float x = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[0], nullptr), ncclRemoteError);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("abort"), std::string::npos);
    ::testing::internal::CaptureStderr();
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(succeeds(ncclCommGetAsyncError(comms[0], &state)));
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_TRUE(succeeds(ncclCommDestroy(comms[0])));
  });
}

TEST(NcclProcesses, AWrongValueIsNotTakenForASetting) {
  run_processes(1, {{"NCCL_SOCKET_IFNAME", "no_such_interface"}}, [](int) {
    ncclUniqueId id;
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"no_such_interface"}, ncclGetUniqueId(&id)));
  });
}

// Reads only the log's variables again.
TEST(NcclProcesses, ResetDebugInitReadsTheLogsVariablesAgain) {
  run_processes(1, {}, [](int) {
    const auto lines_of_an_error = [] {
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(ncclCommCount(nullptr, nullptr), ncclInvalidArgument);
      return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(lines_of_an_error(), "");
    ::setenv("NCCL_DEBUG", "WARN", 1);
    EXPECT_EQ(lines_of_an_error(), "");
    ncclResetDebugInit();
    EXPECT_NE(lines_of_an_error().find("WARN: "), std::string::npos);
  });
}

// NCCL does not define this: a forked child's calls are refused. It may destroy its copies and make its own
// communicators.
TEST(NcclProcesses, AForkedChildIsRefusedAndTheJobGoesOn) {
  Shared<SharedId> shared, of_children;
  run_processes(2, {}, [&](int rank) {
    ncclComm_t comm = nullptr, aborted = nullptr, kept = nullptr;
    ASSERT_TRUE(succeeds(ncclCommInitRank(&comm, 2, exchange(*shared, rank), rank)));
    ASSERT_TRUE(succeeds(ncclCommSplit(comm, 0, rank, &aborted, nullptr)));
    ncclConfig_t nonblocking = new_config();
    nonblocking.blocking = 0;
    ncclResult_t state = ncclCommSplit(comm, 0, rank, &kept, &nonblocking);
    ASSERT_TRUE(state == ncclSuccess || state == ncclInProgress);
    float x = 1, y = 1;
    ASSERT_TRUE(succeeds(ncclGroupStart()));
    ASSERT_TRUE(succeeds(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr)));
    const std::string wrong = in_child([&]() -> std::string {
      std::string text;
      const auto refused = [&text](const char* call, ncclResult_t result) {
        const std::string said = ncclGetLastError(nullptr);
        if (result == ncclSuccess || said.find("forked") == std::string::npos)
          text += std::string(call) + ": " + std::to_string(static_cast<int>(result)) + " " + said + "; ";
      };
      refused("end of the parent's group", ncclGroupEnd());
      refused("ncclAllReduce", ncclAllReduce(&y, &y, 1, ncclFloat32, ncclSum, comm, nullptr));
      refused("ncclAllReduce", ncclAllReduce(&y, &y, 1, ncclFloat32, ncclSum, kept, nullptr));
      int count = 0;
      refused("ncclCommCount", ncclCommCount(comm, &count));
      ncclResult_t error = ncclSuccess;
      refused("ncclCommGetAsyncError", ncclCommGetAsyncError(comm, &error));
      ncclComm_t part = nullptr;
      refused("ncclCommSplit", ncclCommSplit(comm, 0, 0, &part, nullptr));
      refused("ncclCommFinalize", ncclCommFinalize(comm));
      refused("ncclCommRevoke", ncclCommRevoke(comm, 0));
      if (std::string(ncclGetLastError(comm)).find("forked") == std::string::npos) text += "ncclGetLastError; ";
      if (ncclCommAbort(aborted) != ncclSuccess) text += "ncclCommAbort; ";
      if (ncclCommDestroy(comm) != ncclSuccess) text += "ncclCommDestroy; ";
      ncclComm_t own = nullptr;
      if (ncclCommInitRank(&own, 2, exchange(*of_children, rank), rank) != ncclSuccess)
        return text + ncclGetLastError(nullptr);
      if (ncclAllReduce(&y, &y, 1, ncclFloat32, ncclSum, own, nullptr) != ncclSuccess || y != 2) text += "own sum; ";
      if (ncclCommDestroy(own) != ncclSuccess) text += "own destroy; ";
      return text;
    });
    EXPECT_EQ(wrong, "");
    EXPECT_TRUE(succeeds(ncclGroupEnd()));
    EXPECT_EQ(x, 2);
    for (state = ncclInProgress; state == ncclInProgress;) ASSERT_TRUE(succeeds(ncclCommGetAsyncError(kept, &state)));
    for (ncclComm_t c : {comm, aborted, kept}) {
      expect_works(c, 1000);
      EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
    }
  });
}

}  // namespace
}  // namespace rondo::testing
