// The order of ranks by the CPUs that they are bound to: its ring has the fewest crossings on made-up machines, and
// there is no order if masks do not help.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "topology/hosts.h"
#include "topology/local_order.h"

namespace rondo::testing {
namespace {

cpu_set_t mask_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

std::vector<cpu_set_t> masks_of(const std::vector<std::vector<int>>& cpus) {
  std::vector<cpu_set_t> masks;
  for (const auto& c : cpus) masks.push_back(mask_of(c));
  return masks;
}

// Number of changes between values along the closed ring.
int changes(const std::vector<int>& ring, const std::vector<int>& value_of) {
  int n = 0;
  for (size_t i = 0; i < ring.size(); ++i)
    n += value_of[static_cast<size_t>(ring[i])] != value_of[static_cast<size_t>(ring[(i + 1) % ring.size()])];
  return n;
}

TEST(LocalOrder, GoesThroughOnePackageAfterTheOther) {
  const HostTopology host = grid_host({2, 1, 1, 4, 1});
  const auto order = local_order(host, masks_of({{0}, {4}, {1}, {5}}));
  ASSERT_TRUE(order);
  EXPECT_EQ(order->groups, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(changes(order->ring, order->groups), 2);
  EXPECT_NE(order->groups[static_cast<size_t>(order->ring.front())],
            order->groups[static_cast<size_t>(order->ring.back())])
      << "it begins at a border";
}

// Any distribution of ranks to cores: each package is entered once, and within it each NUMA node.
TEST(LocalOrder, CrossesLeastWhateverTheDeal) {
  std::mt19937 random(11);
  for (const Grid& grid : {Grid{2, 2, 1, 4, 2}, Grid{2, 1, 4, 2, 1}, Grid{4, 1, 2, 2, 1}, Grid{1, 4, 1, 4, 1}}) {
    const HostTopology host = grid_host(grid);
    for (int round = 0; round < 20; ++round) {
      std::vector<int> cores(host.cores.size());
      std::iota(cores.begin(), cores.end(), 0);
      std::shuffle(cores.begin(), cores.end(), random);
      cores.resize(3 + random() % (cores.size() - 2));
      std::vector<std::vector<int>> cpus;
      std::vector<int> package, numa;
      for (const int core : cores) {
        cpus.push_back(os_numbers(host, host.cores[static_cast<size_t>(core)].pus));
        package.push_back(host.cores[static_cast<size_t>(core)].package);
        numa.push_back(host.cores[static_cast<size_t>(core)].numa);
      }
      auto kinds = [](std::vector<int> v) {
        std::sort(v.begin(), v.end());
        return static_cast<int>(std::unique(v.begin(), v.end()) - v.begin());
      };
      const auto order = local_order(host, masks_of(cpus));
      if (!order) continue;  // all equal
      std::vector<int> sorted = order->ring;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int>(i));
      const int packages = kinds(package), nodes = kinds(numa);
      EXPECT_EQ(changes(order->ring, package), packages == 1 ? 0 : packages);
      EXPECT_EQ(changes(order->ring, numa), nodes == 1 ? 0 : nodes);
      if (packages > 1) {
        EXPECT_EQ(kinds(order->groups), packages);
        for (size_t r = 0; r < package.size(); ++r)
          EXPECT_EQ(package[r], package[static_cast<size_t>(order->groups[r])]);
      }
    }
  }
}

TEST(LocalOrder, IsNoneWhereMasksSayLittle) {
  const HostTopology host = grid_host({2, 1, 1, 4, 1});
  EXPECT_FALSE(local_order(host, masks_of({})));
  EXPECT_FALSE(local_order(host, masks_of({{0}, {1}, {2}, {3}}))) << "all ranks are in one package and equal";
  EXPECT_FALSE(local_order(host, masks_of({{0}, {4}}))) << "each rank is a group of its own";
  EXPECT_FALSE(local_order(host, masks_of({{0}, {4}, {1, 5}}))) << "a rank that may run on both packages";
  EXPECT_FALSE(local_order(host, masks_of({{0}, {4}, {100}}))) << "a CPU that is not there";
  EXPECT_TRUE(local_order(host, masks_of({{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}})))
      << "bound to packages";
}

}  // namespace
}  // namespace rondo::testing
