// Messages that match by their tags, with ranks as threads; and the C ABI.
// labels: unit tsan
// timeout: 180
#include "api/tag_errors_suite.h"
#include "api/tags_suite.h"
#include "rondo/rondo.h"

namespace rondo::testing {

INSTANTIATE_TEST_SUITE_P(Threads, Tags, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

INSTANTIATE_TEST_SUITE_P(Threads, TagErrors, ::testing::Values(World::kThreads),
                         [](const auto& info) { return std::string(world_name(info.param)); });

TEST(TagsInC, ReceivesFromAnyRankInAGroup) {
  rondo_comm* comms[3];
  ASSERT_EQ(rondo_comm_init_all(comms, 3, nullptr), RONDO_OK) << rondo_last_error(nullptr);
  double out[2] = {1.5, 2.5}, in[2] = {0, 0};
  int sources[2] = {-7, -7};
  rondo_call send = RONDO_CALL_INIT, recv = RONDO_CALL_INIT;
  send.match_tags = recv.match_tags = 1;
  rondo_group_start();
  for (uint64_t i = 0; i < 2; ++i) {
    send.tag = 10 + i;
    EXPECT_EQ(rondo_send(comms[1 + i], &out[i], 1, RONDO_FLOAT64, 0, &send, nullptr), RONDO_OK);
    recv.tag = 11 - i;
    recv.source = &sources[1 - i];
    EXPECT_EQ(rondo_recv(comms[0], &in[1 - i], 1, RONDO_FLOAT64, RONDO_ANY_RANK, &recv, nullptr), RONDO_OK);
  }
  ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(nullptr);
  EXPECT_EQ(in[0], 1.5);
  EXPECT_EQ(in[1], 2.5);
  EXPECT_EQ(sources[0], 1);
  EXPECT_EQ(sources[1], 2);
  for (rondo_comm* comm : comms) rondo_comm_destroy(comm);
}

}  // namespace rondo::testing
