// Many ranks whose mesh is a grid: ranks without a link to a rank still learn of its end, even from idle ranks; a
// failure of one fails all; a rank's resources do not grow with the number of ranks.
// labels: mp
// timeout: 240
// alone
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/mesh_plan.h"
#include "config/setting_table.h"
#include "rondo/host_layout.h"
#include "support/shared.h"

namespace rondo {
namespace {

using testing::Child;
using testing::eventually;
using testing::kSanitized;
using testing::Shared;
using testing::SharedCounter;
using testing::Spawn;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 29;  // five rows of six, the last one short of one

class GridMesh : public ::testing::TestWithParam<int> {  // ranks per pretended host, 0: one host
 protected:
  void SetUp() override { setenv("RONDO_TEST_FULL_MESH", "4", 1); }
  void TearDown() override { unsetenv("RONDO_TEST_FULL_MESH"); }
  MeshPlan plan() const {
    std::vector<int> hosts;
    for (Rank r = 0; r < kRanks; ++r) hosts.push_back(GetParam() == 0 ? 0 : r / GetParam());
    return {HostLayout::of(hosts), 4};
  }
};

struct GridMeeting {
  SharedCounter joined, left, told;
};

// The action of each rank, an otherwise idle process, after all have met. All except `dies` must return "ok".
void run(int ranks_per_host, Rank dies, const std::function<std::string(Bootstrap&)>& body) {
  const Spawn spawn{.ranks_per_host = ranks_per_host};
  std::vector<Child> children = testing::fork_ranks(kRanks, [&](Rank r, const rondo_unique_id& id) -> std::string {
    auto b = Bootstrap::join(kRanks, id, r, spawn.options(r));
    if (!b.ok()) return b.status().to_string();
    const std::string said = body(**b);
    (*b)->part("as " + std::to_string(r));
    (*b)->say_goodbye();
    return said;
  });
  for (Rank r = 0; r < kRanks; ++r)
    EXPECT_EQ(children[static_cast<size_t>(r)].join(), r == dies ? "killed by signal 9" : "ok") << "rank " << r;
}

// Only one survivor polls at a time. The others sleep, and membership events must pass through them.
TEST_P(GridMesh, ADeathIsKnownToThoseWithoutALink) {
  for (const Rank victim : {0, 15, kRanks - 1}) {
    Shared<GridMeeting> meeting;
    run(GetParam(), victim, [&](Bootstrap& b) -> std::string {
      meeting->joined.add();
      if (!meeting->joined.wait_at_least(kRanks, 60)) return "not all have joined";
      const Rank r = b.rank();
      if (r == victim) ::raise(SIGKILL);
      const int turn = r < victim ? r : r - 1;
      if (!meeting->told.wait_at_least(turn, 60)) return "not all ranks before it received the loss";
      std::string why;
      if (!eventually(kSanitized ? 10 : 1, [&] { return b.find_lost().has_value(); })) why = "heard nothing";
      else if (const auto loss = b.find_lost(); loss->rank != victim) why = "blames " + loss->how;
      else if (loss->how.find(b.describe(victim)) == std::string::npos) why = "reports only " + loss->how;
      meeting->told.add();
      if (!meeting->told.wait_at_least(kRanks - 1, 60)) return "not all ranks received the loss";
      return why.empty() ? "ok" : why;
    });
  }
}

// X leaves after one of the two ranks through which most others of its row and column would learn of it.
TEST_P(GridMesh, ALeavingIsKnownToThoseWithoutALink) {
  const MeshPlan plan = this->plan();
  const Rank x = plan.order()[7], first = plan.corner(x, plan.order()[16]);  // in x's row and another's column
  ASSERT_FALSE(plan.linked(x, plan.order()[16]));
  Shared<GridMeeting> meeting;
  run(GetParam(), -1, [&](Bootstrap& b) -> std::string {
    const Rank r = b.rank();
    meeting->joined.add();
    if (!meeting->joined.wait_at_least(kRanks, 60)) return "not all have joined";
    if (r == first) {
      meeting->left.add();
      return "ok";
    }
    if (r == x) {  // all have received the first one's departure before
      if (!meeting->told.wait_at_least(kRanks - 2, 60)) return "the others did not receive the first loss";
      return "ok";
    }
    auto told_of = [&](Rank who) {
      return eventually(kSanitized ? 20 : 5, [&] { return b.parting_note(who) == "as " + std::to_string(who); });
    };
    std::string why;
    if (!told_of(first)) why = "did not receive the first loss";
    meeting->told.add();
    if (!told_of(x)) why = "did not receive the second loss";
    if (b.find_lost()) why = "takes it for a loss: " + b.find_lost()->how;
    meeting->told.add();
    if (!meeting->told.wait_at_least(2 * (kRanks - 2), 60)) return "not all ranks received the loss";
    return why.empty() ? "ok" : why;
  });
}

TEST_P(GridMesh, AFailedCallFailsForAll) {
  std::atomic<int> num_failed = 0;
  const auto results = testing::join_threads(
      kRanks, {.ranks_per_host = GetParam(), .deadline_s = kSanitized ? 10.0 : 2.0}, [&](Bootstrap& b) {
        EXPECT_OK(b.barrier());
        if (b.rank() == 8) {  // lives but does not come
          EXPECT_TRUE(eventually(60, [&] { return num_failed == kRanks - 1; }));
          return;
        }
        const Status s = b.barrier();
        EXPECT_EQ(s.code(), StatusCode::kTimeout) << b.rank();
        EXPECT_NE(s.message().find("waiting for rank 8"), std::string_view::npos) << b.rank() << ": " << s.to_string();
        ++num_failed;
        EXPECT_TRUE(eventually(60, [&] { return num_failed == kRanks - 1; }));
      });
  for (const Status& s : results) EXPECT_OK(s);
}

// Ranks also know the addresses of ranks without a link.
TEST_P(GridMesh, EverybodyKnowsEverybody) {
  const auto results = testing::join_threads(kRanks, {.ranks_per_host = GetParam()}, [&](Bootstrap& b) {
    for (Rank r = 0; r < b.nranks(); ++r) {
      EXPECT_NE(b.describe(r).find("(pid " + std::to_string(::getpid()) + " on "), std::string::npos);
      EXPECT_EQ(b.same_process(r), b.same_host(r));
      EXPECT_TRUE(r == b.rank() || !b.address_of(r).empty());
    }
    EXPECT_OK(b.barrier());
  });
  for (const Status& s : results) EXPECT_OK(s);
}

INSTANTIATE_TEST_SUITE_P(Hosts, GridMesh, ::testing::Values(0, 1, 8));

// 1024 ranks on 128 hosts, as processes: they meet, gather and learn of a death, and each needs few descriptors.
TEST(Thousands, OfRanksMeetGatherAndHearOfADeath) {
  constexpr int kMany = kSanitized ? 150 : 1024;
  constexpr Rank kVictim = kMany / 2 + 3;
  Shared<GridMeeting> meeting;
  const Spawn spawn{.ranks_per_host = 8, .deadline_s = 120};
  const auto start = Clock::now();
  std::vector<Child> children = testing::fork_ranks(kMany, [&](Rank r, const rondo_unique_id& id) -> std::string {
    const int before = testing::num_open_descriptors();  // with those of earlier forked siblings
    auto b = Bootstrap::join(kMany, id, r, spawn.options(r));
    if (!b.ok()) return b.status().to_string();
    std::vector<std::string> all;
    if (const Status s = (*b)->all_gather(&r, sizeof r, &all); !s.ok()) return s.to_string();
    for (Rank i = 0; i < kMany; ++i)
      if (all[static_cast<size_t>(i)] != std::string_view(reinterpret_cast<const char*>(&i), sizeof i))
        return "got something else from rank " + std::to_string(i);
    const int descriptors = testing::num_open_descriptors() - before;
    if (descriptors > 2 * 31 + 2 * 7 + 10) return "has " + std::to_string(descriptors) + " descriptors";
    meeting->joined.add();
    if (!meeting->joined.wait_at_least(kMany, 120)) return "not all have joined";
    if (r == kVictim) ::raise(SIGKILL);
    const bool heard = eventually(60, [&] {
      const auto loss = (*b)->find_lost();
      ::poll(nullptr, 0, 20);  // a thousand processes share the cores
      return loss && loss->rank == kVictim;
    });
    meeting->told.add();
    if (!meeting->told.wait_at_least(kMany - 1, 120)) return "not all ranks received the loss";
    const auto found = (*b)->find_lost();
    (*b)->say_goodbye();
    return heard ? "ok" : found ? found->how : "heard nothing";
  });
  if (meeting->joined.wait_at_least(kMany, 120))  // measured, not judged
    std::printf("%d ranks have met and gathered %.2f s after the first fork\n", kMany,
                std::chrono::duration<double>(Clock::now() - start).count());
  for (Rank r = 0; r < kMany; ++r)
    EXPECT_EQ(children[static_cast<size_t>(r)].join(), r == kVictim ? "killed by signal 9" : "ok") << "rank " << r;
}

}  // namespace
}  // namespace rondo
