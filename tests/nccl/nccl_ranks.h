// Shared by tests of libnccl.so.2: ranks as threads that make their own communicators, and checks of results.
// Thread safety: run_ranks from the main thread. GoogleTest's expectations may be used in all ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"

namespace rondo::testing {

/// The result is as expected. The message contains ncclGetLastError's text.
inline ::testing::AssertionResult returns(ncclResult_t expected, ncclResult_t result) {
  if (result == expected) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "result " << static_cast<int>(result) << " instead of "
                                       << static_cast<int>(expected) << "; last error: " << ncclGetLastError(nullptr);
}
inline ::testing::AssertionResult succeeds(ncclResult_t result) { return returns(ncclSuccess, result); }

/// The result is as expected, and the last error contains all of the words.
inline ::testing::AssertionResult fails_with(ncclResult_t expected, std::initializer_list<std::string> words,
                                             ncclResult_t result) {
  if (result != expected) return returns(expected, result);
  const std::string text = ncclGetLastError(nullptr);
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "the text does not hold \"" << word << "\": " << text;
  return ::testing::AssertionSuccess();
}

/// Runs fn(rank) in a thread for each rank.
inline void run_ranks(int nranks, const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  for (int r = 0; r < nranks; ++r) threads.emplace_back([&fn, r] { fn(r); });
  for (std::thread& t : threads) t.join();
}

/// The same with a communicator for each rank, made and destroyed here. config: nullptr for a plain ncclCommInitRank.
inline void run_comms(int nranks, const std::function<void(int, ncclComm_t)>& fn,
                      const ncclConfig_t* config = nullptr) {
  ncclUniqueId id;
  ASSERT_TRUE(succeeds(ncclGetUniqueId(&id)));
  run_ranks(nranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ncclConfig_t mine = config != nullptr ? *config : ncclConfig_t{};
    const ncclResult_t made = config != nullptr ? ncclCommInitRankConfig(&comm, nranks, id, rank, &mine)
                                                : ncclCommInitRank(&comm, nranks, id, rank);
    EXPECT_TRUE(succeeds(made));
    if (made != ncclSuccess) return;
    fn(rank, comm);
    EXPECT_TRUE(succeeds(ncclCommDestroy(comm)));
  });
}

/// The same values as NCCL_CONFIG_INITIALIZER of 2.32.3.
inline ncclConfig_t new_config() {
  ncclConfig_t c = {};
  for (int* i = &c.blocking; i <= &c.nvlsHostMode; ++i) *i = NCCL_CONFIG_UNDEF_INT;
  c.netName = c.commName = nullptr;
  c.size = sizeof c;
  c.magic = NCCL_API_MAGIC;
  c.version = 23203;
  return c;
}
inline ncclCollConfig_t new_call_config() {
  ncclCollConfig_t c = {};
  c.size = sizeof c;
  c.magic = NCCL_API_MAGIC;
  c.version = 23203;
  c.minCTAs = c.maxCTAs = c.nvlsCTAs = c.cgaClusterSize = c.CTAPolicy = NCCL_CONFIG_UNDEF_INT;
  c.forceAlgSelection = 1;
  return c;
}

/// Polls until the communicator is not in progress, and returns its state.
inline ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    std::this_thread::yield();
  }
  return state;
}

/// Checks a sum of floats on this rank.
inline void expect_works(ncclComm_t comm, size_t count = 1000) {
  int rank = -1, nranks = 0;
  ASSERT_TRUE(succeeds(ncclCommUserRank(comm, &rank)));
  ASSERT_TRUE(succeeds(ncclCommCount(comm, &nranks)));
  std::vector<float> data(count, static_cast<float>(rank + 1));
  const ncclResult_t r = ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, comm, nullptr);
  ASSERT_TRUE(succeeds(r == ncclInProgress ? settle(comm) : r));
  const auto sum = static_cast<float>(nranks * (nranks + 1) / 2);
  for (const float x : data) ASSERT_EQ(x, sum);
}

}  // namespace rondo::testing
