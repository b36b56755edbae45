// Making, sharing and ending communicators through NCCL's interface, ranks as threads.
// labels: unit tsan
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "nccl/comm.h"
#include "nccl/nccl_ranks.h"
#include "nccl/process.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

constexpr double kDeadlineS = 30;

ncclConfig_t nonblocking_config() {
  ncclConfig_t c = new_config();
  c.blocking = 0;
  return c;
}

TEST(NcclInit, ArgumentsAreChecked) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  ncclComm_t comm = nullptr;
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"comm", "null"}, ncclCommInitRank(nullptr, 2, id, 0)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"nranks is 0"}, ncclCommInitRank(&comm, 0, id, 0)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"rank is 2 of 2"}, ncclCommInitRank(&comm, 2, id, 2)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"ndev"}, ncclCommInitAll(&comm, -1, nullptr)));
  const int devices[] = {0, -3};
  ncclComm_t two[2] = {};
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"devlist[1] is -3"}, ncclCommInitAll(two, 2, devices)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"null"}, ncclGetUniqueId(nullptr)));
  ncclUniqueId torn = id;
  torn.internal[30] ^= 1;
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommInitRank(&comm, 1, torn, 0)));
  EXPECT_EQ(comm, nullptr);
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"commIds"}, ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"nId is 2"}, ncclCommInitRankScalable(&comm, 1, 0, 2, &id, nullptr)));
}

TEST(NcclInit, AHandleThatIsGoneIsAnErrorAndNoCrash) {
  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  ASSERT_TRUE(succeeds(ncclCommDestroy(comm)));
  int n = 0;
  ncclResult_t state;
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"already destroyed or aborted"}, ncclCommDestroy(comm)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommCount(comm, &n)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommAbort(comm)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommGetAsyncError(comm, &state)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclAllReduce(&n, &n, 1, ncclInt32, ncclSum, comm, nullptr)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(nullptr)));
  EXPECT_TRUE(succeeds(ncclCommAbort(nullptr)));
  EXPECT_TRUE(succeeds(ncclCommFinalize(nullptr)));
  EXPECT_TRUE(succeeds(ncclCommRevoke(nullptr, 0)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"comm", "null"}, ncclCommCount(nullptr, &n)));
}

TEST(NcclInit, OneThreadMakesSeveralRanksInAGroup) {
  constexpr int kRanks = 3;
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  std::vector<ncclComm_t> comms(kRanks);
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  for (int r = 0; r < kRanks; ++r)
    ASSERT_TRUE(succeeds(ncclCommInitRank(&comms[static_cast<size_t>(r)], kRanks, id, r)));
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  run_ranks(kRanks, [&](int r) { expect_works(comms[static_cast<size_t>(r)]); });
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommFinalize(c)));
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclInit, AGroupThatIsWrongMakesNothing) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  ncclComm_t good = nullptr, bad = nullptr;
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  ASSERT_TRUE(succeeds(ncclCommInitRank(&good, 2, id, 0)));
  EXPECT_NE(good, nullptr);
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommInitRank(&bad, 2, id, 5)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"rank is 5"}, ncclGroupEnd()));
  EXPECT_EQ(good, nullptr);

  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  int x = 0;
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, comm, nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"separate group"}, ncclCommInitRank(&good, 1, id, 0)));
  EXPECT_TRUE(returns(ncclInvalidUsage, ncclGroupEnd()));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
}

TEST(NcclInit, ScalableTakesTheFirstId) {
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  run_ranks(2, [&](int rank) {
    ncclComm_t comm;
    ASSERT_TRUE(succeeds(ncclCommInitRankScalable(&comm, 2, rank, 2, ids, nullptr)));
    expect_works(comm);
    EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  });
}

TEST(NcclEnd, FinalizeAndDestroyInAnyOrderByOneThread) {
  std::vector<ncclComm_t> comms(3);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms.data(), 3, nullptr)));
  EXPECT_TRUE(succeeds(ncclCommFinalize(comms[2])));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"already finalized"}, ncclCommFinalize(comms[2])));
  float x = 0;
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"finalized"},
                         ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[2], nullptr)));
  ncclResult_t state = ncclInternalError;
  EXPECT_TRUE(succeeds(ncclCommGetAsyncError(comms[2], &state)));
  EXPECT_EQ(state, ncclSuccess);
  ASSERT_TRUE(succeeds(ncclGroupStart()));  // like PyTorch
  EXPECT_TRUE(succeeds(ncclCommDestroy(comms[1])));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comms[2])));
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comms[0])));
}

TEST(NcclQueries, AnswerAndRefuse) {
  const int devices[] = {4, 4};
  ncclComm_t comms[2];
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, devices)));
  int n = -1;
  EXPECT_TRUE(succeeds(ncclCommCuDevice(comms[1], &n)));
  EXPECT_EQ(n, 4);
  EXPECT_TRUE(succeeds(ncclCommUserRank(comms[1], &n)));
  EXPECT_EQ(n, 1);
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"count"}, ncclCommCount(comms[0], nullptr)));
  EXPECT_TRUE(succeeds(ncclGetVersion(&n)));
  EXPECT_EQ(n, 23203);

  ncclCommProperties_t p = {};
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommQueryProperties(comms[1], &p)));
  p.size = offsetof(ncclCommProperties_t, commHash);  // a caller of 2.30
  p.magic = NCCL_API_MAGIC;
  p.commHash = 7;
  EXPECT_TRUE(succeeds(ncclCommQueryProperties(comms[1], &p)));
  EXPECT_EQ(p.rank, 1);
  EXPECT_EQ(p.nRanks, 2);
  EXPECT_EQ(p.cudaDev, 4);
  EXPECT_FALSE(p.deviceApiSupport);
  EXPECT_EQ(p.commHash, 7u);  // not this caller's field
  ncclCommProperties_t q[2] = {};
  for (int r = 0; r < 2; ++r) {
    q[r].size = sizeof q[r];
    q[r].magic = NCCL_API_MAGIC;
    EXPECT_TRUE(succeeds(ncclCommQueryProperties(comms[r], &q[r])));
  }
  EXPECT_EQ(q[0].commHash, q[1].commHash);

  EXPECT_EQ(ncclTeamWorld(comms[1]).rank, 1);
  EXPECT_EQ(ncclTeamLsa(comms[1]).nRanks, 1);
  EXPECT_EQ(ncclTeamRankToWorld(comms[1], ncclTeamWorld(comms[1]), 0), 0);
  EXPECT_EQ(ncclTeamRankToWorld(comms[1], ncclTeamLsa(comms[1]), 0), 1);
  EXPECT_EQ(ncclTeamRankToLsa(comms[1], ncclTeamWorld(comms[1]), 1), 0);
  EXPECT_EQ(ncclLLA2ACalcSlots(7, 9), 14);
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclQueries, WhatIsNotThereSaysSo) {
  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  ncclWindow_t window = reinterpret_cast<ncclWindow_t>(1);
  int buffer = 0;
  void* pointer = nullptr;
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"ncclCommWindowRegister", "ncclSend"},
                         ncclCommWindowRegister(comm, &buffer, 4, &window, 0)));
  EXPECT_EQ(window, nullptr);
  EXPECT_TRUE(succeeds(ncclCommWindowDeregister(comm, window)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"ncclWinGetUserPtr"}, ncclWinGetUserPtr(comm, window, &pointer)));
  EXPECT_TRUE(
      fails_with(ncclInvalidUsage, {"ncclDevCommCreate", "host API"}, ncclDevCommCreate(comm, nullptr, nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"ncclPutSignal", "ncclSend"},
                         ncclPutSignal(&buffer, 1, ncclInt32, 0, window, 0, 0, 0, 0, comm, nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"ncclWaitSignal"}, ncclWaitSignal(0, nullptr, comm, nullptr)));
  EXPECT_TRUE(
      fails_with(ncclInvalidUsage, {"ncclGetPeerDevicePointer"}, ncclGetPeerDevicePointer(window, 0, 0, &pointer)));
  ncclEncryptionConfig_t secret = {sizeof secret, NCCL_API_MAGIC, 23203, NCCL_ENCRYPTION_MODE_PSK, "key"};
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"config.psk", "3 bytes", "32"}, ncclSetEncryption(&secret)));
  secret.psk = nullptr;
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"config.psk"}, ncclSetEncryption(&secret)));
  secret.mode = NCCL_ENCRYPTION_MODE_NONE;
  EXPECT_TRUE(succeeds(ncclSetEncryption(&secret)));
  secret.magic = 0;
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclSetEncryption(&secret)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
}

TEST(NcclMemory, IsAllocatedRegisteredAndGivenBack) {
  ncclComm_t a, b;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&a, 1, nullptr)));
  ASSERT_TRUE(succeeds(ncclCommInitAll(&b, 1, nullptr)));
  void *memory = nullptr, *handle = nullptr;
  ASSERT_TRUE(succeeds(ncclMemAlloc(&memory, 5000)));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096, 0u);
  std::memset(memory, 1, 5000);
  ASSERT_TRUE(succeeds(ncclCommRegister(a, memory, 5000, &handle)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"handle"}, ncclCommDeregister(b, handle)));
  EXPECT_TRUE(succeeds(ncclCommDeregister(a, handle)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommDeregister(a, handle)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommRegister(a, nullptr, 1, &handle)));
  EXPECT_TRUE(succeeds(ncclMemFree(memory)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"already freed"}, ncclMemFree(memory)));
  EXPECT_TRUE(succeeds(ncclMemFree(nullptr)));

  uint64_t value = 9;
  float x = 1;
  EXPECT_TRUE(succeeds(ncclCommMemStats(a, ncclStatGpuMemTotal, &value)));
  EXPECT_EQ(value, 0u);
  EXPECT_TRUE(succeeds(ncclCommSuspend(a, NCCL_SUSPEND_MEM)));
  EXPECT_TRUE(succeeds(ncclCommMemStats(a, ncclStatGpuMemSuspended, &value)));
  EXPECT_EQ(value, 1u);
  EXPECT_TRUE(
      fails_with(ncclInvalidUsage, {"ncclCommResume"}, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, a, nullptr)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"already suspended"}, ncclCommSuspend(a, NCCL_SUSPEND_MEM)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclCommSuspend(b, 0)));
  EXPECT_TRUE(succeeds(ncclCommResume(a)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"not suspended"}, ncclCommResume(a)));
  expect_works(a);
  EXPECT_TRUE(succeeds(ncclCommDestroy(a)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(b)));
}

TEST(NcclNonblocking, InitAndCallsAreDrivenByAsyncError) {
  const ncclConfig_t config = nonblocking_config();
  constexpr int kRanks = 2;
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  std::vector<ncclComm_t> comms(kRanks);
  ncclConfig_t mine = config;
  ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&comms[0], kRanks, id, 0, &mine)));
  ASSERT_NE(comms[0], nullptr);
  ncclResult_t state;  // the other rank has not called, so this one is not ready
  ASSERT_TRUE(succeeds(ncclCommGetAsyncError(comms[0], &state)));
  EXPECT_EQ(state, ncclInProgress);
  int n = 0;
  float x[2] = {1, 2};
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"ncclCommGetAsyncError"}, ncclCommCount(comms[0], &n)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclAllReduce(&x[0], &x[0], 1, ncclFloat32, ncclSum, comms[0], nullptr)));
  ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&comms[1], kRanks, id, 1, &mine)));
  for (ncclComm_t c : comms) ASSERT_EQ(settle(c), ncclSuccess);

  // One thread can now start the ranks' calls one after the other without a group.
  for (size_t r = 0; r < 2; ++r)
    EXPECT_TRUE(returns(ncclInProgress, ncclAllReduce(&x[r], &x[r], 1, ncclFloat32, ncclSum, comms[r], nullptr)));
  for (ncclComm_t c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  EXPECT_EQ(x[0], 3.0f);
  EXPECT_EQ(x[1], 3.0f);

  ASSERT_TRUE(succeeds(ncclGroupStart()));
  for (size_t r = 0; r < 2; ++r)
    EXPECT_TRUE(succeeds(ncclAllReduce(&x[r], &x[r], 1, ncclFloat32, ncclSum, comms[r], nullptr)));
  EXPECT_TRUE(returns(ncclInProgress, ncclGroupEnd()));
  for (ncclComm_t c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  EXPECT_EQ(x[1], 6.0f);

  // A child inherits it.
  std::vector<ncclComm_t> parts(2);
  for (size_t r = 0; r < 2; ++r)
    EXPECT_TRUE(returns(ncclInProgress, ncclCommSplit(comms[r], 0, static_cast<int>(r), &parts[r], nullptr)));
  for (size_t r = 0; r < 2; ++r) ASSERT_EQ(settle(comms[r]), ncclSuccess);
  for (size_t r = 0; r < 2; ++r) ASSERT_EQ(settle(parts[r]), ncclSuccess);
  run_ranks(2, [&](int r) { expect_works(parts[static_cast<size_t>(r)]); });

  for (ncclComm_t c : comms) EXPECT_TRUE(returns(ncclInProgress, ncclCommFinalize(c)));
  for (ncclComm_t c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
  for (ncclComm_t c : parts) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclNonblocking, DoesNotMixWithBlocking) {
  ncclComm_t blocking, other;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&blocking, 1, nullptr)));
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  ncclConfig_t config = nonblocking_config();
  ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&other, 1, id, 0, &config)));
  ASSERT_EQ(settle(other), ncclSuccess);
  float x = 1;
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  ASSERT_TRUE(succeeds(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, blocking, nullptr)));
  EXPECT_TRUE(
      fails_with(ncclInvalidArgument, {"one kind"}, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, other, nullptr)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclGroupEnd()));
  EXPECT_TRUE(succeeds(ncclCommDestroy(blocking)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(other)));
}

TEST(NcclAbort, EndsAnInitThatNobodyJoins) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  const Stopwatch watch;
  ncclComm_t comm;
  ncclConfig_t config = nonblocking_config();
  ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config)));
  EXPECT_TRUE(succeeds(ncclCommAbort(comm)));

  // The same for a blocking one, whose handle is already stored for the caller while it waits.
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  std::atomic<ncclComm_t> shared{nullptr};
  std::thread waiting([&] {
    EXPECT_TRUE(returns(ncclRemoteError, ncclCommInitRank(reinterpret_cast<ncclComm_t*>(&shared), 2, id, 0)));
  });
  while (shared.load() == nullptr) std::this_thread::yield();
  EXPECT_TRUE(succeeds(ncclCommAbort(shared.load())));
  waiting.join();
  EXPECT_EQ(shared.load(), nullptr);
  EXPECT_LT(watch.seconds(), kDeadlineS);
}

TEST(NcclAbort, EndsACallThatBlocksAndTheWatchdogHearsIt) {
  ncclComm_t comms[2];
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms, 2, nullptr)));
  std::atomic<bool> entered{false};
  std::thread blocked([&] {
    float x = 1;
    EXPECT_TRUE(succeeds(ncclGroupStart()));
    EXPECT_TRUE(succeeds(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[0], nullptr)));
    entered = true;
    EXPECT_TRUE(fails_with(ncclRemoteError, {"abort"}, ncclGroupEnd()));
  });
  while (!entered) std::this_thread::yield();
  ncclResult_t state;
  for (int i = 0; i < 1000; ++i) {  // while the other thread is blocked, or about to be
    ASSERT_TRUE(succeeds(ncclCommGetAsyncError(comms[0], &state)));
    ASSERT_EQ(state, ncclSuccess);
    ASSERT_NE(ncclGetLastError(comms[0]), nullptr);
  }
  EXPECT_TRUE(succeeds(ncclCommAbort(comms[1])));
  blocked.join();
  ASSERT_TRUE(succeeds(ncclCommGetAsyncError(comms[0], &state)));
  EXPECT_EQ(state, ncclRemoteError);
  EXPECT_NE(std::string(ncclGetLastError(comms[0])).find("abort"), std::string::npos);
  EXPECT_TRUE(succeeds(ncclCommAbort(comms[0])));
}

TEST(NcclAbort, EndsANonblockingCall) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  ncclComm_t comms[2];
  ncclConfig_t config = nonblocking_config();
  for (int r = 0; r < 2; ++r)
    ASSERT_TRUE(returns(ncclInProgress, ncclCommInitRankConfig(&comms[r], 2, id, r, &config)));
  for (ncclComm_t c : comms) ASSERT_EQ(settle(c), ncclSuccess);
  float x = 1;
  ASSERT_TRUE(returns(ncclInProgress, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comms[0], nullptr)));
  const std::shared_ptr<nccl::Comm> inside = nccl::process().find(comms[0]);
  EXPECT_TRUE(succeeds(ncclCommAbort(comms[0])));
  EXPECT_NE(inside->async_error().code(), StatusCode::kInProgress) << "the job may still touch x";
  EXPECT_EQ(settle(comms[1]), ncclRemoteError);
  EXPECT_TRUE(succeeds(ncclCommDestroy(comms[1])));
}

TEST(NcclErrors, AreKeptForTheirThreadTheirCommunicatorAndTheProcess) {
  ncclComm_t comm;
  ASSERT_TRUE(succeeds(ncclCommInitAll(&comm, 1, nullptr)));
  float x = 0;
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclBroadcast(&x, &x, 1, ncclFloat32, 77, comm, nullptr)));
  EXPECT_NE(std::string(ncclGetLastError(comm)).find("root is 77"), std::string::npos);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("root is 77"), std::string::npos);
  std::thread([&] {  // a thread without an error of its own
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("root is 77"), std::string::npos);
  })
      .join();
  for (int r = -1; r <= ncclNumResults + 1; ++r) EXPECT_NE(ncclGetErrorString(static_cast<ncclResult_t>(r)), nullptr);
  EXPECT_STRNE(ncclGetErrorString(ncclTimeout), ncclGetErrorString(ncclRemoteError));
  EXPECT_TRUE(
      returns(ncclInvalidArgument, ncclAllReduce(&x, &x, 1, static_cast<ncclDataType_t>(12), ncclSum, comm, nullptr)));
  EXPECT_TRUE(
      returns(ncclInvalidArgument, ncclAllReduce(&x, &x, 1, ncclFloat32, static_cast<ncclRedOp_t>(-1), comm, nullptr)));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclSend(&x, 1, ncclFloat32, 1, comm, nullptr)));
  EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
}

// As with PMPI, a profiler may define the weak name and call the strong one.
TEST(NcclTwins, BothNamesAnswer) {
  int a = 0, b = 0;
  EXPECT_TRUE(succeeds(ncclGetVersion(&a)));
  EXPECT_TRUE(succeeds(pncclGetVersion(&b)));
  EXPECT_EQ(a, b);
}

TEST(NcclParameters, AreBoundAndRead) {
  setenv("NCCL_MAX_CTAS", "300", 1);
  const char** keys = nullptr;
  int num = 0;
  ASSERT_TRUE(succeeds(ncclParamGetAllParameterKeys(&keys, &num)));
  ASSERT_GT(num, 0);
  ncclParamHandle_t handle = nullptr;
  ASSERT_TRUE(succeeds(ncclParamBind(&handle, "NCCL_MAX_CTAS")));
  int8_t small = 0;
  int16_t large = 0;
  uint64_t largest = 0;
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"300", "8 bits"}, ncclParamGetI8(handle, &small)));
  EXPECT_TRUE(succeeds(ncclParamGetI16(handle, &large)));
  EXPECT_TRUE(succeeds(ncclParamGetU64(handle, &largest)));
  EXPECT_EQ(large, 300);
  EXPECT_EQ(largest, 300u);
  const char* text = nullptr;
  int length = 0;
  EXPECT_TRUE(succeeds(ncclParamGetStr(handle, &text)));
  EXPECT_STREQ(text, "300");
  EXPECT_TRUE(succeeds(ncclParamGetParameter("NCCL_MAX_CTAS", &text, &length)));
  EXPECT_EQ(length, 3);
  char bytes[4];
  EXPECT_TRUE(succeeds(ncclParamGet(handle, bytes, sizeof bytes, &length)));
  EXPECT_STREQ(bytes, "300");
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclParamGet(handle, bytes, 3, &length)));
  EXPECT_TRUE(fails_with(ncclInvalidArgument, {"NCCL_NO_SUCH"}, ncclParamBind(&handle, "NCCL_NO_SUCH")));
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclParamGetI32(reinterpret_cast<ncclParamHandle_t>(bytes), nullptr)));
  unsetenv("NCCL_MAX_CTAS");
  EXPECT_TRUE(returns(ncclInvalidArgument, ncclParamGetI16(handle, &large)));  // not set
}

}  // namespace
}  // namespace rondo::testing
