// Several network cards: ranks on hosts joined by two networks send over both (RONDO_RAILS).
// labels: mp
// again with: RONDO_TRANSPORT=shm+ucx
// timeout: 180
// alone
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

const std::string kBoth = "rails = eth0,eth1";

class Rails : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
    static const bool joined = test_hosts().add_network();
    ASSERT_TRUE(joined);
  }
};

uint64_t sent_bytes(const std::string& device) {
  uint64_t bytes = 0;
  std::ifstream("/sys/class/net/" + device + "/statistics/tx_bytes") >> bytes;
  return bytes;
}

Expected<std::unique_ptr<Communicator>> over(Communicator& comm, const std::string& settings) {
  Config config;
  config.settings = settings;
  return comm.split(0, comm.rank(), config);
}

void sums_are_right(Communicator& comm) {
  const int n = comm.size();
  for (const uint64_t count : {0u, 1u, 997u, 100'003u, 700'001u}) {
    SimpleAllReduce call(comm, count);
    Work work;
    ASSERT_TRUE(is_ok(call.start(comm, &work)));
    ASSERT_TRUE(is_ok(work.wait()));
    EXPECT_EQ(call.judge(), "");
    const auto r = static_cast<size_t>(comm.rank()), ranks = static_cast<size_t>(n);
    std::vector<float> part(count), all(count * ranks), sum(count);
    for (uint64_t i = 0; i < count; ++i) part[i] = simple_value(comm.rank(), i);
    ASSERT_TRUE(is_ok(comm.all_gather(part.data(), all.data(), count, Dtype::kFloat32)));
    for (size_t p = 0; p < ranks; ++p)
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(all[p * count + i], simple_value(static_cast<Rank>(p), i)) << p;
    ASSERT_TRUE(is_ok(comm.reduce_scatter(all.data(), sum.data(), count, Dtype::kFloat32, Op::kSum)));
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(sum[i], static_cast<float>(n) * simple_value(comm.rank(), i)) << r;
  }
}

TEST_F(Rails, ResultsAreRight) {
  for (const int nranks : {2, 4, 6})
    spawn(World::kHosts, nranks, [](Communicator& comm) {
      auto both = over(comm, kBoth);
      ASSERT_TRUE(both.ok()) << both.status().to_string();
      sums_are_right(**both);
      auto half = (*both)->split(comm.rank() % 2, comm.rank());  // has its parent's rails
      ASSERT_TRUE(half.ok()) << half.status().to_string();
      sums_are_right(**half);
    });
}

TEST_F(Rails, AlsoEncrypted) {
  setenv("RONDO_ENCRYPT", "on", 1);
  spawn(World::kHosts, 4, [](Communicator& comm) {
    auto both = over(comm, kBoth);
    ASSERT_TRUE(both.ok()) << both.status().to_string();
    sums_are_right(**both);
  });
  unsetenv("RONDO_ENCRYPT");
}

// Rails are matched by position, not by name: rank 0's first may be another rank's second.
TEST_F(Rails, BothCarryAndNeitherIsUsedUnasked) {
  spawn(World::kHosts, 2, [](Communicator& comm) {
    constexpr uint64_t kCount = 4 << 20;
    auto both = over(comm, kBoth), one = over(comm, "rails = eth1");
    ASSERT_TRUE(both.ok()) << both.status().to_string();
    ASSERT_TRUE(one.ok()) << one.status().to_string();
    for (Communicator* c : {both->get(), one->get()}) {
      SimpleAllReduce call(*c, kCount);
      const uint64_t first = sent_bytes("eth0"), second = sent_bytes("eth1");
      Work work;
      ASSERT_TRUE(is_ok(call.start(*c, &work)));
      ASSERT_TRUE(is_ok(work.wait()));
      EXPECT_EQ(call.judge(), "");
      ASSERT_TRUE(is_ok(c->barrier()));
      const double by_first = static_cast<double>(sent_bytes("eth0") - first),
                   by_second = static_cast<double>(sent_bytes("eth1") - second);
      EXPECT_GT(by_first + by_second, 0.9 * kCount * sizeof(float));
      if (c == one->get()) EXPECT_LT(by_first, 0.05 * by_second);
      else EXPECT_GT(std::min(by_first, by_second), 0.25 * (by_first + by_second));
    }
  });
}

TEST_F(Rails, OneCableOfTwoEndsTheCallWithItsPeersName) {
  Shared<SharedCounter> num_ready;
  SpawnOptions options;
  options.deadline_s = 60;
  options.in_parent = [&](const std::vector<pid_t>&) {
    EXPECT_TRUE(num_ready->wait_at_least(2, 30));
    EXPECT_TRUE(test_hosts().unplug(1, 1));
    num_ready->add();
  };
  spawn(
      World::kHosts, 2,
      [&](Communicator& comm) {
        auto both = over(comm, kBoth);
        ASSERT_TRUE(both.ok()) << both.status().to_string();
        sums_are_right(**both);
        num_ready->add();
        ASSERT_TRUE(num_ready->wait_at_least(3, 30));
        std::vector<float> data(1 << 20, 1);
        CallOptions call;
        call.deadline_s = 1;
        const Stopwatch watch;
        const Status s = (*both)->all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &call);
        EXPECT_FALSE(s.ok());
        EXPECT_NE(s.message().find("rank " + std::to_string(1 - comm.rank())), std::string::npos) << s.to_string();
        EXPECT_LT(watch.seconds(), 2.5);
      },
      options);
  EXPECT_TRUE(test_hosts().plug_in(1, 1));
}

TEST_F(Rails, MistakesAreNamedOnAllRanks) {
  spawn(World::kHosts, 2, [](Communicator& comm) {
    const bool first = comm.rank() == 0;
    const std::vector<std::pair<std::string, std::vector<std::string>>> mistakes = {
        {"rails = eth0,eth9", {"RONDO_RAILS", "eth9", "eth0"}},
        {"rails = eth0,eth0", {"RONDO_RAILS", "eth0 comes twice"}},
        {"rails = eth0,", {"RONDO_RAILS", "a name is empty"}},
    };
    for (const auto& [settings, words] : mistakes) {
      const auto made = over(comm, first ? settings : kBoth);  // one rank's mistake
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << made.status().to_string();
      for (const std::string& word : words)
        EXPECT_NE(made.status().message().find(word), std::string::npos) << made.status().to_string();
      EXPECT_NE(made.status().message().find("rank 0"), std::string::npos) << made.status().to_string();
    }
    const auto made = over(comm, first ? "rails = eth0" : kBoth);
    EXPECT_TRUE(fails_with(made.status(), StatusCode::kMismatch,
                           {"rank 1 has 2 rails and rank 0 has 1", "as many network devices"}));
    auto works = over(comm, kBoth);
    ASSERT_TRUE(works.ok()) << works.status().to_string();
    sums_are_right(**works);
  });
}

}  // namespace
}  // namespace rondo::testing
