// Split, shrink, grow and revoke through NCCL's interface, ranks as threads.
// labels: unit tsan
#include <gtest/gtest.h>

#include <atomic>

#include "nccl/nccl_ranks.h"

namespace rondo::testing {
namespace {

TEST(NcclSplit, OrdersByKeyAndGivesNoneWithoutAColour) {
  run_comms(4, [](int rank, ncclComm_t comm) {
    ncclComm_t part = reinterpret_cast<ncclComm_t>(1);
    const int color = rank == 3 ? NCCL_SPLIT_NOCOLOR : 0;
    ASSERT_TRUE(succeeds(ncclCommSplit(comm, color, -rank, &part, nullptr)));
    if (rank == 3) {
      EXPECT_EQ(part, nullptr);
    } else {
      int n = 0;
      EXPECT_TRUE(succeeds(ncclCommUserRank(part, &n)));
      EXPECT_EQ(n, 2 - rank);
      expect_works(part);
      EXPECT_TRUE(succeeds(ncclCommDestroy(part)));
    }
    expect_works(comm);
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"color is -7"}, ncclCommSplit(comm, -7, 0, &part, nullptr)));
  });
}

TEST(NcclSplit, OneThreadSplitsAllItsRanksInAGroup) {
  constexpr size_t kRanks = 4;
  std::vector<ncclComm_t> comms(kRanks), parts(kRanks);
  ASSERT_TRUE(succeeds(ncclCommInitAll(comms.data(), kRanks, nullptr)));
  ASSERT_TRUE(succeeds(ncclGroupStart()));
  for (size_t r = 0; r < kRanks; ++r)
    ASSERT_TRUE(succeeds(ncclCommSplit(comms[r], static_cast<int>(r % 2), 0, &parts[r], nullptr)));
  ASSERT_TRUE(succeeds(ncclGroupEnd()));
  run_ranks(kRanks, [&](int r) { expect_works(parts[static_cast<size_t>(r)]); });
  ncclCommProperties_t p[3] = {};
  for (size_t r = 0; r < 3; ++r) {
    p[r].size = sizeof p[r];
    p[r].magic = NCCL_API_MAGIC;
    ASSERT_TRUE(succeeds(ncclCommQueryProperties(parts[r], &p[r])));
  }
  EXPECT_EQ(p[0].commHash, p[2].commHash);
  EXPECT_NE(p[0].commHash, p[1].commHash);
  for (ncclComm_t c : comms) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
  for (ncclComm_t c : parts) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

TEST(NcclShrink, LeavesOutWhoIsNamed) {
  run_comms(3, [](int rank, ncclComm_t comm) {
    int out[] = {1};
    ncclComm_t smaller = nullptr;
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"empty"}, ncclCommShrink(comm, out, 0, &smaller, nullptr, 0)));
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"shrinkFlags"}, ncclCommShrink(comm, out, 1, &smaller, nullptr, 8)));
    if (rank == 1) {
      EXPECT_TRUE(fails_with(ncclInvalidArgument, {"the caller"}, ncclCommShrink(comm, out, 1, &smaller, nullptr, 0)));
    } else {
      ASSERT_TRUE(succeeds(ncclCommShrink(comm, out, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT)));
      int n = 0;
      EXPECT_TRUE(succeeds(ncclCommCount(smaller, &n)));
      EXPECT_EQ(n, 2);
      expect_works(smaller);
      EXPECT_TRUE(succeeds(ncclCommDestroy(smaller)));
    }
    expect_works(comm);  // the parent stays usable
  });
}

// Rank 1 never makes the call that the others wait in.
TEST(NcclShrink, AbortsWhatIsUnderWay) {
  run_comms(3, [](int rank, ncclComm_t comm) {
    if (rank == 1) return;
    std::atomic<bool> entered{false};
    std::thread stuck([&] {
      float x = 1;
      entered = true;
      EXPECT_TRUE(returns(ncclRemoteError, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr)));
    });
    while (!entered) std::this_thread::yield();
    int out[] = {1};
    ncclComm_t smaller = nullptr;
    EXPECT_TRUE(succeeds(ncclCommShrink(comm, out, 1, &smaller, nullptr, NCCL_SHRINK_ABORT)));
    stuck.join();
    if (smaller == nullptr) return;
    expect_works(smaller);
    EXPECT_TRUE(succeeds(ncclCommDestroy(smaller)));
  });
}

TEST(NcclRevoke, EndsCallsAndLeavesSplitAndShrink) {
  run_comms(3, [](int rank, ncclComm_t comm) {
    EXPECT_TRUE(fails_with(ncclInvalidArgument, {"revokeFlags"}, ncclCommRevoke(comm, 1)));
    std::atomic<bool> entered{false};
    std::thread stuck;
    if (rank == 0)
      stuck = std::thread([&] {
        float x = 1;
        entered = true;
        EXPECT_NE(ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
      });
    while (rank == 0 && !entered) std::this_thread::yield();
    ASSERT_TRUE(succeeds(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)));
    if (stuck.joinable()) stuck.join();
    ncclResult_t state = ncclInternalError;
    EXPECT_TRUE(succeeds(ncclCommGetAsyncError(comm, &state)));
    EXPECT_EQ(state, ncclSuccess);
    float x = 1;
    EXPECT_TRUE(
        fails_with(ncclInvalidUsage, {"revoked"}, ncclAllReduce(&x, &x, 1, ncclFloat32, ncclSum, comm, nullptr)));
    EXPECT_TRUE(fails_with(ncclInvalidUsage, {"revoked"}, ncclCommFinalize(comm)));
    ncclComm_t part = nullptr, smaller = nullptr;
    ASSERT_TRUE(succeeds(ncclCommSplit(comm, rank == 2, rank, &part, nullptr)));
    expect_works(part);
    EXPECT_TRUE(succeeds(ncclCommDestroy(part)));
    int out[] = {2};
    if (rank == 2) return;
    ASSERT_TRUE(succeeds(ncclCommShrink(comm, out, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT)));
    expect_works(smaller);
    EXPECT_TRUE(succeeds(ncclCommDestroy(smaller)));
  });
}

// The id comes from rank 1, but rondo's grow takes it from rank 0.
TEST(NcclGrow, OldRanksKeepTheirsAndNewOnesJoin) {
  ncclComm_t old[2];
  ASSERT_TRUE(succeeds(ncclCommInitAll(old, 2, nullptr)));
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclCommGetUniqueId(old[1], &id)));
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"ncclCommGrow"}, ncclCommGetUniqueId(old[1], &id)));
  run_ranks(3, [&](int rank) {
    ncclComm_t larger = nullptr;
    if (rank == 2) {
      EXPECT_TRUE(
          fails_with(ncclInvalidArgument, {"uniqueId"}, ncclCommGrow(nullptr, 3, nullptr, 2, &larger, nullptr)));
      ASSERT_TRUE(succeeds(ncclCommGrow(nullptr, 3, &id, 2, &larger, nullptr)));
    } else {
      EXPECT_TRUE(
          fails_with(ncclInvalidArgument, {"pass -1"}, ncclCommGrow(old[rank], 3, nullptr, rank, &larger, nullptr)));
      EXPECT_TRUE(
          fails_with(ncclInvalidArgument, {"nRanks is 2"}, ncclCommGrow(old[rank], 2, nullptr, -1, &larger, nullptr)));
      ASSERT_TRUE(succeeds(ncclCommGrow(old[rank], 3, rank == 1 ? &id : nullptr, -1, &larger, nullptr)));
    }
    int n = -1;
    EXPECT_TRUE(succeeds(ncclCommUserRank(larger, &n)));
    EXPECT_EQ(n, rank);
    expect_works(larger);
    EXPECT_TRUE(succeeds(ncclCommDestroy(larger)));
  });
  EXPECT_TRUE(fails_with(ncclInvalidUsage, {"already used"}, [&] {
    ncclComm_t larger;
    return ncclCommGrow(old[1], 3, &id, -1, &larger, nullptr);
  }()));
  run_ranks(2, [&](int rank) { expect_works(old[rank]); });
  for (ncclComm_t c : old) EXPECT_TRUE(succeeds(ncclCommDestroy(c)));
}

}  // namespace
}  // namespace rondo::testing
