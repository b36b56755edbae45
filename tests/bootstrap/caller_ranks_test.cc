#include "bootstrap/caller_ranks.h"

#include <gtest/gtest.h>

namespace rondo {
namespace {

TEST(CallerRanks, NumbersOfRanksAreTranslatedAndNoOthers) {
  const std::vector<Rank> callers = {4, 7, 2};
  auto translate = [&](std::string_view text) { return in_callers_ranks(text, callers); };
  EXPECT_EQ(translate("rank 0 waited 1 s in all_gather #2, waiting for ranks 1, 2"),
            "rank 4 waited 1 s in all_gather #2, waiting for ranks 7, 2");
  EXPECT_EQ(translate("rank 2 (pid 1 on node1) was lost"), "rank 2 (pid 1 on node1) was lost");
  EXPECT_EQ(translate("ranks 0, 1 and 2 more have not joined"), "ranks 4, 7 and 2 more have not joined");
  EXPECT_EQ(translate("rank 1's process; nranks 1; 3 ranks; rank 3; rank x; rank"),
            "rank 7's process; nranks 1; 3 ranks; rank 3; rank x; rank");
  EXPECT_EQ(translate("rank 0"), "rank 4");
  EXPECT_EQ(translate(""), "");
  EXPECT_TRUE(in_callers_ranks(Status(), callers).ok());
  const Status s = in_callers_ranks(Status(StatusCode::kTimeout, "rank 1"), callers);
  EXPECT_EQ(s.code(), StatusCode::kTimeout);
  EXPECT_EQ(s.message(), "rank 7");
}

}  // namespace
}  // namespace rondo
