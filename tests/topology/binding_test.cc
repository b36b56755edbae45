// Binding of ranks: equal ranks share the CPUs that their mask allows, a launcher's masks stay, and ranks go near their
// GPUs. A thread's mask is narrowed and never widened.
#include "topology/binding.h"

#include <gtest/gtest.h>

#include <thread>

#include "topology/hosts.h"

namespace rondo::testing {
namespace {

cpu_set_t set_of(std::initializer_list<int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}
cpu_set_t range(int first, int last) {
  cpu_set_t set = set_of({});
  for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &set);
  return set;
}
bool equal(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b) != 0; }

Binding chosen(const HostTopology& host, const std::vector<RankCpus>& ranks, size_t rank, BindTo to) {
  auto b = choose_binding(host, ranks, rank, to);
  EXPECT_TRUE(b.ok()) << b.status().to_string();
  return b.ok() ? *b : Binding();
}

// 2 packages of 2 nodes of 4 cores; CPUs 16 to 31 are second hardware threads.
const HostTopology kHost = grid_host({2, 2, 1, 4, 2});

TEST(Binding, RanksOfOneMaskShareItsCores) {
  const std::vector<RankCpus> four(4, {range(0, 31), -1});
  for (size_t r = 0; r < 4; ++r) {
    const int core = static_cast<int>(4 * r);
    EXPECT_TRUE(equal(chosen(kHost, four, r, BindTo::kCore).cpus, set_of({core, core + 16})));
    cpu_set_t node = range(core, core + 3);
    for (int cpu = core + 16; cpu < core + 20; ++cpu) CPU_SET(cpu, &node);
    EXPECT_TRUE(equal(chosen(kHost, four, r, BindTo::kNuma).cpus, node));
  }
  EXPECT_EQ(chosen(kHost, four, 1, BindTo::kCore).text, "core 4 (CPUs 4,20) of NUMA node 1");
  EXPECT_EQ(chosen(kHost, four, 3, BindTo::kNuma).text, "NUMA node 3 (CPUs 12-15,28-31)");
}

TEST(Binding, WhatALauncherGaveStays) {
  const std::vector<RankCpus> ranks = {{range(4, 7), -1}, {set_of({9}), -1}, {range(4, 7), -1}, {range(0, 3), -1}};
  EXPECT_TRUE(equal(chosen(kHost, ranks, 0, BindTo::kCore).cpus, set_of({4})));
  EXPECT_TRUE(equal(chosen(kHost, ranks, 1, BindTo::kCore).cpus, set_of({9})));
  EXPECT_TRUE(equal(chosen(kHost, ranks, 1, BindTo::kNuma).cpus, set_of({9}))) << "never more than the mask";
  EXPECT_TRUE(equal(chosen(kHost, ranks, 2, BindTo::kCore).cpus, set_of({6})));
  EXPECT_TRUE(equal(chosen(kHost, ranks, 3, BindTo::kCore).cpus, set_of({0})));
}

TEST(Binding, TheMaskOfTheProcessThatLooksDoesNotMatter) {
  HostTopology seen = kHost;
  restrict_pus(seen, std::vector<int>{9});
  const std::vector<RankCpus> ranks = {{range(4, 7), -1}, {set_of({9}), -1}};
  for (size_t r = 0; r < 2; ++r)
    EXPECT_TRUE(equal(chosen(seen, ranks, r, BindTo::kCore).cpus, chosen(kHost, ranks, r, BindTo::kCore).cpus));
}

TEST(Binding, RanksWithGpusAreNextToThem) {
  const std::vector<RankCpus> ranks = {
      {range(0, 15), 3}, {range(0, 15), 1}, {range(0, 15), 3}, {range(0, 15), -1}, {range(0, 7), 2}};
  EXPECT_TRUE(equal(chosen(kHost, ranks, 0, BindTo::kCore).cpus, set_of({12})));
  EXPECT_TRUE(equal(chosen(kHost, ranks, 2, BindTo::kCore).cpus, set_of({14})));
  EXPECT_TRUE(equal(chosen(kHost, ranks, 1, BindTo::kNuma).cpus, range(4, 7)));
  const Binding away = chosen(kHost, ranks, 4, BindTo::kCore);
  EXPECT_TRUE(equal(away.cpus, set_of({0})));
  EXPECT_NE(away.text.find("no CPU next to its GPU"), std::string::npos) << away.text;
}

TEST(Binding, MoreRanksThanCpus) {
  const std::vector<RankCpus> ranks(5, {set_of({2, 3}), -1});
  int on_2 = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Binding b = chosen(kHost, ranks, r, BindTo::kCore);
    EXPECT_EQ(CPU_COUNT(&b.cpus), 1);
    on_2 += CPU_ISSET(2, &b.cpus) != 0;
    EXPECT_NE(b.text.find("shared"), std::string::npos);
  }
  EXPECT_EQ(on_2, 3);
}

TEST(Binding, AMaskWithoutAnyOfTheHostsCpusIsAnError) {
  const std::vector<RankCpus> ranks = {{set_of({99}), -1}};
  EXPECT_EQ(choose_binding(kHost, ranks, 0, BindTo::kCore).status().code(), StatusCode::kInvalidArgument);
}

TEST(Binding, NarrowsAThreadAndNeverWidensIt) {
  std::thread([] {
    cpu_set_t before, now;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) ++first;
    Binding one{set_of({first, 1000}), "there"}, all{range(0, CPU_SETSIZE - 1), "anywhere"},
        none{set_of({1001}), "nowhere"};
    ASSERT_TRUE(bind_this_thread(one).ok());
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_TRUE(equal(now, set_of({first})));
    ASSERT_TRUE(bind_this_thread(all).ok());
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_TRUE(equal(now, set_of({first}))) << "not widened again";
    const Status s = bind_this_thread(none);
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find("not bound to nowhere"), std::string::npos) << s.message();
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_TRUE(equal(now, set_of({first}))) << "as it was";
  }).join();
}

TEST(Binding, Names) {
  EXPECT_EQ(bind_from_name(""), BindTo::kNone);
  EXPECT_EQ(bind_from_name("none"), BindTo::kNone);
  EXPECT_EQ(bind_from_name("core"), BindTo::kCore);
  EXPECT_EQ(bind_from_name("numa"), BindTo::kNuma);
}

}  // namespace
}  // namespace rondo::testing
