// Places of ranks: even over packages and nodes, cores before hardware threads, only allowed CPUs; ranks near their
// GPUs; the nearest NIC.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "topology/hosts.h"
#include "topology/places.h"

namespace rondo::testing {
namespace {

std::vector<DevicePlacement> placed_with_devices(const HostWithDevices& host, int ranks, std::span<const int> gpus) {
  auto places = place_ranks_and_devices(host, ranks, gpus);
  EXPECT_TRUE(places.ok()) << places.status().to_string();
  return places.ok() ? *places : std::vector<DevicePlacement>();
}

template <class Key>
std::map<int, int> counts(const std::vector<Placement>& places, Key&& key) {
  std::map<int, int> found;
  for (const Placement& p : places) ++found[key(p)];
  return found;
}

size_t num_allowed(const HostTopology& host) {
  return static_cast<size_t>(std::count_if(host.pus.begin(), host.pus.end(), [](const Pu& p) { return p.allowed; }));
}

void expect_good_places(const HostTopology& host, int n) {
  const auto places = placed(host, n);
  ASSERT_EQ(places.size(), static_cast<size_t>(n));
  std::map<int, int> users;
  for (size_t r = 0; r < places.size(); ++r) {
    const Placement& p = places[r];
    ASSERT_FALSE(p.pus.empty());
    for (const int pu : p.pus) {
      EXPECT_TRUE(host.pus[static_cast<size_t>(pu)].allowed);
      EXPECT_EQ(host.pus[static_cast<size_t>(pu)].core, p.core);
      ++users[pu];
    }
    EXPECT_EQ(host.cores[static_cast<size_t>(p.core)].numa, p.numa);
    EXPECT_GE(p.core, places[r > 0 ? r - 1 : 0].core) << "ranks that follow one another are near";
    const std::vector<int> around = node_pus(host, p);
    EXPECT_TRUE(std::includes(around.begin(), around.end(), p.pus.begin(), p.pus.end()));
  }
  const bool enough = places.size() <= num_allowed(host);
  for (const Placement& p : places) EXPECT_FALSE(p.shared && enough);
  for (const auto& [pu, ranks] : users) EXPECT_TRUE(ranks == 1 || !enough) << "PU " << pu;
  // No unit has two ranks while another has none, for cores and PUs.
  std::set<int> usable;
  for (size_t pu = 0; pu < host.pus.size(); ++pu)
    if (host.pus[pu].allowed) usable.insert(host.pus[pu].core);
  const auto by_core = counts(places, [](const Placement& p) { return p.core; });
  EXPECT_EQ(by_core.size(), std::min(usable.size(), places.size()));
}

TEST(Places, AreGoodForAnyNumberOfRanks) {
  for (const Grid& grid : {Grid{}, Grid{2, 1, 1, 8, 2}, Grid{1, 4, 2, 4, 2}, Grid{2, 2, 1, 3, 1}, Grid{1, 1, 1, 2, 4}})
    for (int n = 1; n <= 33; ++n) {
      SCOPED_TRACE(::testing::Message() << grid.packages << " packages, " << n << " ranks");
      expect_good_places(grid_host(grid), n);
    }
  expect_good_places(grid_host({2, 2, 1, 4, 2}), 1000);
}

TEST(Places, StayWithinTheMask) {
  for (const std::vector<int>& cpus :
       {std::vector<int>{0}, {5}, {0, 16}, {7, 8}, {1, 3, 5, 7, 9, 11}, {16, 17, 18, 31}})
    for (int n = 1; n <= 9; ++n) {
      HostTopology host = grid_host({2, 1, 1, 8, 2});  // CPUs 16 to 31 are the cores' second threads
      restrict_pus(host, cpus);
      expect_good_places(host, n);
    }
  HostTopology host = grid_host({2, 1, 1, 8, 2});
  restrict_pus(host, std::vector<int>{7, 8});
  const auto places = placed(host, 2);
  EXPECT_EQ(places[0].package, 0);
  EXPECT_EQ(places[1].package, 1);
  restrict_pus(host, std::vector<int>{8, 9});
  EXPECT_EQ(num_allowed(host), 1u) << "a mask is never widened";
}

TEST(Places, SpreadOverNodesInProportion) {
  const HostTopology host = grid_host({2, 2, 1, 4, 1});
  const auto nodes = [&](int n) { return counts(placed(host, n), [](const Placement& p) { return p.numa; }); };
  EXPECT_EQ(nodes(2), (std::map<int, int>{{0, 1}, {2, 1}}));
  EXPECT_EQ(nodes(4), (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(nodes(8), (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
  HostTopology half = host;
  restrict_pus(half, std::vector<int>{0, 1, 2, 3, 4, 5, 8, 12});  // 4, 2, 1 and 1 cores of the nodes
  EXPECT_EQ(counts(placed(half, 4), [](const Placement& p) { return p.numa; }),
            (std::map<int, int>{{0, 2}, {1, 1}, {2, 1}}));
}

TEST(Places, WholeCoresBeforeHardwareThreads) {
  const HostTopology host = grid_host({1, 1, 1, 4, 2});
  EXPECT_EQ(placed(host, 4)[1].pus, (std::vector<int>{2, 3})) << "a core of its own: both of its PUs";
  const auto six = placed(host, 6);
  EXPECT_EQ(counts(six, [](const Placement& p) { return p.core; }),
            (std::map<int, int>{{0, 2}, {1, 1}, {2, 2}, {3, 1}}));
  EXPECT_EQ(six[0].pus, std::vector<int>{0});
  EXPECT_EQ(six[1].pus, std::vector<int>{1});
  EXPECT_TRUE(placed(host, 9)[0].shared);
  // Cores with one and with two PUs: those with one PU are the last to get a second rank.
  HostTopology mixed = host;
  restrict_pus(mixed, std::vector<int>{0, 4, 1, 5, 2, 3});
  EXPECT_EQ(counts(placed(mixed, 6), [](const Placement& p) { return p.core; }),
            (std::map<int, int>{{0, 2}, {1, 2}, {2, 1}, {3, 1}}));
  EXPECT_FALSE(placed(mixed, 6)[0].shared);
}

HostWithDevices with_gpus() {
  HostWithDevices host{grid_host({2, 2, 1, 4, 1})};
  for (const int numa : {1, 1, 3, -1}) {
    HostGpu gpu;
    gpu.numa = numa;
    gpu.package = numa < 0 ? -1 : numa / 2;
    host.gpus.push_back(gpu);
  }
  return host;
}

TEST(Places, OfGpusAreTheCoresNextToThem) {
  HostWithDevices host = with_gpus();
  const std::vector<int> gpus = {2, 0, 1, 3};
  const auto places = placed_with_devices(host, 4, gpus);
  EXPECT_EQ(places[0].core, 12);
  EXPECT_EQ(places[1].core, 4);
  EXPECT_EQ(places[2].core, 6) << "two GPUs share a node's four cores";
  EXPECT_EQ(places[3].core, 0) << "nothing is known of its place: all cores";
  for (const DevicePlacement& p : places) EXPECT_FALSE(p.away);
  restrict_pus(host, std::vector<int>{0, 1, 2, 8});  // none of node 1, one of package 1
  const auto restricted = placed_with_devices(host, 4, gpus);
  EXPECT_TRUE(restricted[0].away && restricted[1].away);
  EXPECT_EQ(restricted[0].core, 8);
  EXPECT_EQ(restricted[1].package, 0);
}

TEST(Places, TheNearestNicAndAmongEqualOnesTheLeastUsed) {
  HostWithDevices host = with_gpus();
  const auto nic = [&](const char* name, bool rdma, int numa) {
    HostNic n;
    n.name = name;
    n.rdma = rdma;
    n.numa = numa;
    n.package = numa / 2;
    host.nics.push_back(n);
  };
  nic("eth0", false, 0);
  const auto names = [&](const std::vector<DevicePlacement>& places) {
    std::vector<std::string> found;
    for (const DevicePlacement& p : places) found.push_back(host.nics[static_cast<size_t>(p.nic)].name);
    return found;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(placed_with_devices(host, 2, {})), (Names{"eth0", "eth0"}));
  nic("mlx5_0", true, 1);
  nic("mlx5_1", true, 1);
  nic("mlx5_2", true, 2);
  EXPECT_EQ(names(placed_with_devices(host, 4, {})), (Names{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_2"}))
      << "no rail is Ethernet";
  EXPECT_EQ(names(placed_with_devices(host, 3, std::vector<int>{0, 1, 2})), (Names{"mlx5_0", "mlx5_1", "mlx5_2"}));
}

TEST(Places, WrongRequestsAreNamed) {
  HostWithDevices host = with_gpus();
  for (const auto& [ranks, words] : {std::pair{0, "0 ranks"}, {-1, "-1 ranks"}})
    EXPECT_NE(place_ranks(host, ranks).status().message().find(words), std::string::npos);
  const std::vector<int> wrong = {0, 4};
  const auto refusal = [&](int ranks) { return place_ranks_and_devices(host, ranks, wrong).status().to_string(); };
  EXPECT_NE(refusal(2).find("rank 1: there is no GPU 4"), std::string::npos);
  EXPECT_NE(refusal(3).find("2 GPUs are named for 3"), std::string::npos);
  restrict_pus(host, std::vector<int>{99});
  EXPECT_NE(place_ranks(host, 1).status().message().find("no CPU is allowed"), std::string::npos);
}

TEST(CpuLists, ThereAndBack) {
  for (const char* text : {"0", "0-3", "0-3,8,10-11", "5,7"}) EXPECT_EQ(cpu_list_text(*parse_cpu_list(text)), text);
  EXPECT_EQ(cpu_list_text(*parse_cpu_list("3,1,2,2")), "1-3");
  for (const char* text : {"", "x", "1-", "-1", "3-1", "1,,2", "1,", "1 2", "99999999999"})
    EXPECT_FALSE(parse_cpu_list(text).ok()) << text;
}

}  // namespace
}  // namespace rondo::testing
