// The order of rings and trees by the CPUs that ranks are bound to, as agreed by communicators of processes. hwloc gets
// a topology in which this machine's first two CPUs are packages, so that the order matters.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/cpu_masks.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/spawn_processes.h"
#include "topology/host_reader.h"

namespace rondo::testing {
namespace {

class RankOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have_hwloc()) GTEST_SKIP() << why_no_hwloc();
    if (cpus_ != std::vector<int>{0, 1}) GTEST_SKIP() << "needs a machine of two CPUs, 0 and 1";
  }
  /// fn(comm) in processes, rank r bound to CPU cpu_of[r]; -1: not bound.
  template <class Fn>
  void in_processes(const std::vector<int>& cpu_of, const std::string& settings, Fn fn) {
    const int nranks = static_cast<int>(cpu_of.size());
    IdPipes pipes(nranks);
    report(run_processes_bare(nranks,
                              [&](Rank rank) -> Status {
                                setenv("HWLOC_SYNTHETIC", "Package:2 Core:1 PU:1", 1);
                                if (const int cpu = cpu_of[static_cast<size_t>(rank)]; cpu >= 0) {
                                  cpu_set_t one;
                                  CPU_ZERO(&one);
                                  CPU_SET(cpu, &one);
                                  EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
                                }
                                RONDO_TRY_ASSIGN(const UniqueId id, pipes.exchange(rank));
                                Config config;
                                config.settings = settings.c_str();
                                RONDO_TRY_ASSIGN(auto comm, Communicator::init_rank(nranks, id, rank, config));
                                fn(*comm);
                                return {};
                              },
                              {}),
           {});
  }
  const std::vector<int> cpus_ = cpu_mask();
};

std::string plan_of(Communicator& comm, uint64_t count_elems) {
  return comm.explain_plan(Collective::kAllReduce, count_elems, Dtype::kFloat32, Op::kSum);
}

// The plan has an order in which the ranks of `first` come before all others.
void expect_places(Communicator& comm, std::set<int> first) {
  const std::string plan = plan_of(comm, 100000);
  const size_t at = plan.find(", by places ");
  ASSERT_NE(at, std::string::npos) << plan;
  std::istringstream order(plan.substr(at + 12));
  for (int rank; order >> rank;) EXPECT_EQ(first.erase(rank), 1u) << plan;
  EXPECT_TRUE(first.empty()) << plan;
  order.clear();
  EXPECT_EQ(order.get(), '|') << plan;
}

void expect_right(Communicator& comm) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1009}, uint64_t{300007}}) {
    SimpleAllReduce call(comm, count);
    Work work;
    ASSERT_TRUE(is_ok(call.start(comm, &work)));
    ASSERT_TRUE(is_ok(work.wait()));
    EXPECT_EQ(call.judge(), "");
  }
}

TEST_F(RankOrder, FollowsPackages) {
  for (const char* algorithm : {"ring", "tree"})
    in_processes({0, 1, 0, 1, 0}, std::string("algo = ") + algorithm, [](Communicator& comm) {
      expect_places(comm, {0, 2, 4});
      expect_right(comm);
      // A part uses its own ranks' places.
      auto part = comm.split(comm.rank() == 0 ? 1 : 0, -comm.rank());
      ASSERT_TRUE(is_ok(part.status()));
      expect_right(**part);
      if (comm.rank() != 0) expect_places(**part, {0, 2});
    });
}

TEST_F(RankOrder, GoesByRankWhereAskedTo) {
  in_processes({0, 1, 0, 1}, "algo = ring\norder = rank", [](Communicator& comm) {
    EXPECT_EQ(plan_of(comm, 100000).find("by places"), std::string::npos) << plan_of(comm, 100000);
    expect_right(comm);
  });
}

// Sums that round: in the ring's order, and in rank order.
std::vector<float> ring_sum(Communicator& comm, uint32_t promises) {
  std::vector<float> data(4000);
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = 1.0f / static_cast<float>(i + 1 + 77 * static_cast<size_t>(comm.rank() * comm.rank() + 1));
  CallOptions options;
  options.algorithm = "ring";
  options.promises = promises;
  const Status s = comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &options);
  EXPECT_TRUE(is_ok(s));
  return data;
}

TEST_F(RankOrder, PromisedBitsAreThoseOfRanks) {
  in_processes({0, 1, 0, 1}, "", [](Communicator& comm) {
    auto by_rank = comm.split(0, comm.rank(), [] {
      Config config;
      config.settings = "order = rank";
      return config;
    }());
    ASSERT_TRUE(is_ok(by_rank.status()));
    const std::vector<float> expected = ring_sum(**by_rank, RONDO_PROMISE_SAME_BITS_PER_TRANSPORT);
    EXPECT_EQ(ring_sum(comm, RONDO_PROMISE_SAME_BITS_PER_TRANSPORT), expected);
    EXPECT_NE(ring_sum(comm, 0), expected) << "this test compares nothing";
  });
}

TEST_F(RankOrder, GoesByRankWhereMasksSayNothing) {
  for (const std::vector<int>& cpu_of : {std::vector<int>{-1, -1, -1, -1}, {0, 0, 0, 0}, {0, 1, -1, 0}})
    in_processes(cpu_of, "algo = ring", [](Communicator& comm) {
      EXPECT_EQ(plan_of(comm, 100000).find("by places"), std::string::npos) << plan_of(comm, 100000);
      expect_right(comm);
    });
}

}  // namespace
}  // namespace rondo::testing
