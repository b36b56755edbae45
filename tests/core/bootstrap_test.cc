// Bootstrap among ranks as threads: joining, gathering, descriptors, leaving, and every error that a rank can see.
// labels: unit mp
// timeout: 120
#include "core/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "bootstrap_harness.h"
#include "core/unique_id.h"

namespace rondo {
namespace {

class BootstrapRanks : public ::testing::TestWithParam<int> {};

// Rank r contributes r copies of its letter, rank 0 nothing at all.
std::string blob_of(Rank r) { return std::string(static_cast<size_t>(r) * 1000, static_cast<char>('a' + r % 26)); }

void gather_and_check(Bootstrap& b) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> all;
    const std::string mine = blob_of(b.rank());
    ASSERT_OK(b.all_gather(mine.data(), mine.size(), &all));
    ASSERT_EQ(all.size(), static_cast<size_t>(b.nranks()));
    for (Rank r = 0; r < b.nranks(); ++r) EXPECT_EQ(all[r], blob_of(r)) << "rank " << r << " seen by " << b.rank();
    ASSERT_OK(b.barrier());
  }
}

TEST_P(BootstrapRanks, ThreadsGather) {
  const auto results = testing::join_threads(GetParam(), {}, [](Bootstrap& b) {
    gather_and_check(b);
    for (Rank r = 0; r < b.nranks(); ++r) {
      EXPECT_TRUE(b.same_host(r));
      EXPECT_TRUE(b.same_process(r));
    }
    EXPECT_FALSE(b.find_lost().has_value());
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST_P(BootstrapRanks, ProcessesGather) {
  const auto results = testing::join_processes(GetParam(), {}, [](Bootstrap& b) {
    gather_and_check(b);
    for (Rank r = 0; r < b.nranks(); ++r) EXPECT_EQ(b.same_process(r), r == b.rank());
    EXPECT_FALSE(b.find_lost().has_value());
    return !::testing::Test::HasFailure();
  });
  for (const std::string& s : results) EXPECT_EQ(s, "ok");
}

// The TCP mesh: every rank pretends to be a host of its own, or every second one.
TEST_P(BootstrapRanks, HostsGatherThroughTcp) {
  for (const int ranks_per_host : {1, 2}) {
    const auto results = testing::join_threads(
        GetParam(), {.ranks_per_host = ranks_per_host}, [&](Bootstrap& b) {
          gather_and_check(b);
          for (Rank r = 0; r < b.nranks(); ++r)
            EXPECT_EQ(b.same_host(r), r / ranks_per_host == b.rank() / ranks_per_host);
        });
    for (const Status& s : results) EXPECT_OK(s);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BootstrapRanks, ::testing::Values(1, 2, 5, 16));

}  // namespace
}  // namespace rondo
