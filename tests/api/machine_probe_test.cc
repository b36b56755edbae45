// The measurement of a new machine: plausible constants, or the reason why there are none; it changes nothing else.
// labels: unit
#include "api/machine_probe.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "api/communicator_impl.h"
#include "base/error.h"
#include "plan/environment_variable.h"
#include "plan/machine_file.h"

namespace rondo {
namespace {

using testing::EnvironmentVariable;

class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(path_), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  char path_[64] = "/tmp/rondo_machine_probe_test_XXXXXX";
};

TEST(MachineProbe, FindsConstantsOrSaysWhyNot) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const Expected<CostModel> found = measure_machine();
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  if (!found.ok()) {
    EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
    GTEST_SKIP() << found.status().to_string();
  }
  const CostModel built_in = built_in_costs();
  for (size_t t = 0; t < kNumCostTerms; ++t) {
    const double change = found->spread[t] / built_in.spread[t];
    EXPECT_TRUE(std::isfinite(change) && change > 0.01 && change < 100) << kCostTerms[t].name << " " << change;
    if (t >= static_cast<size_t>(kFirstHostTerm)) {
      EXPECT_EQ(change, 1) << kCostTerms[t].name;
    }
  }
  EXPECT_NE(found->spread, built_in.spread);
  EXPECT_GE(found->near_bytes, 64u << 10);
}

TEST(MachineProbe, IsKeptForTheNextProcess) {
  const Folder folder;
  const std::string path = folder.path() + "/a/rondo/machine";
  CostModel slow = built_in_costs();
  for (double& c : slow.spread) c *= 3;
  EXPECT_EQ(measure_and_keep(path, [&] { return slow; }).costs, slow);
  EXPECT_EQ(**read_machine_file(path), slow);
  // A failed measurement gives the built-in constants, and does not replace the file.
  EXPECT_EQ(measure_and_keep(path, []() -> Expected<CostModel> { return unsupported("busy"); }).costs,
            built_in_costs());
  EXPECT_EQ(**read_machine_file(path), slow);
  // Without a place for the file, this process still uses them.
  EXPECT_EQ(measure_and_keep("", [&] { return slow; }).costs, slow);
  EXPECT_EQ(measure_and_keep(path + "/rondo/machine", [&] { return slow; }).costs, slow);
}

TEST(MachineProbe, TheFirstCommunicatorMeasures) {
  const Folder folder;
  const EnvironmentVariable home("HOME", folder.path()), config("XDG_CONFIG_HOME", ""), no_file("RONDO_CONFIG", "");
  const EnvironmentVariable cache("XDG_CACHE_HOME", folder.path()), probe("RONDO_PROBE", "on");
  const auto costs_of = [](const Config& how) {
    auto comms = Communicator::init_all(2, how);
    EXPECT_TRUE(comms.ok()) << comms.status().to_string();
    const CostModel first = impl_of(*(*comms)[0]).planner().settings().costs;
    EXPECT_EQ(first, impl_of(*(*comms)[1]).planner().settings().costs);
    return first;
  };
  const CostModel first = costs_of({});
  const auto kept = read_machine_file(machine_file_path());
  ASSERT_TRUE(kept.ok()) << kept.status().to_string();
  if (*kept) {  // nothing is kept if the machine was busy
    EXPECT_EQ(first, **kept);
  }
  EXPECT_EQ(costs_of({}), first);  // not measured again
}

TEST(MachineProbe, RanksThatJoinUseRankZeros) {
  const Folder folder;
  const EnvironmentVariable home("HOME", folder.path()), config("XDG_CONFIG_HOME", ""), no_file("RONDO_CONFIG", "");
  const EnvironmentVariable cache("XDG_CACHE_HOME", folder.path()), probe("RONDO_PROBE", "on");
  for (const int nranks : {1, 3}) {
    const Expected<UniqueId> id = Communicator::make_unique_id();
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    std::vector<CostModel> costs(static_cast<size_t>(nranks));
    std::vector<std::thread> ranks;
    for (int r = 0; r < nranks; ++r)
      ranks.emplace_back([&, r] {
        const auto comm = Communicator::init_rank(nranks, *id, r);
        ASSERT_TRUE(comm.ok()) << comm.status().to_string();
        costs[static_cast<size_t>(r)] = impl_of(**comm).planner().settings().costs;
      });
    for (std::thread& t : ranks) t.join();
    const CostModel expected = nranks == 1 ? built_in_costs() : costs_of_this_machine()->costs;
    for (const CostModel& c : costs) EXPECT_EQ(c, expected);
  }
}

}  // namespace
}  // namespace rondo
