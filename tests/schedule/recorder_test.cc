// Recorder: verbs become instructions, equal port sets one entry, wrong operands abort.
#include "schedule/recorder.h"

#include <gtest/gtest.h>

namespace rondo {
namespace {

TEST(Recorder, WritesDownWhatTheVerbSays) {
  Recorder p(1, 4);
  p.chunks(4, 4, 2);
  p.lane(0);
  p.recv_reduce_copy_send({{0, 3}, {2, 3}}, in(2), out(3), {{3, 1}}, own_after(1), Sum::kFinal);
  p.lane(2);
  p.wait(0, 0);
  p.copy(in(3, 2), scratch(0, 2));
  p.direct().copy_send(in(0), out(1), {{0, 0}});
  p.copy(in(0), out(0));
  p.send_credit({{0, 0}});
  const RankSchedule s = p.take();
  ASSERT_EQ(s.lanes.size(), 3u);
  EXPECT_TRUE(s.lanes[1].empty());

  const Instruction& i = s.lanes[0][0];
  EXPECT_EQ(i.verb, Verb::kRecvReduceCopySend);
  EXPECT_EQ(i.src_buffer(), Buffer::kIn);
  EXPECT_EQ(i.dst_buffer(), Buffer::kOut);
  EXPECT_EQ(i.src_first, 2);
  EXPECT_EQ(i.dst_first, 3);
  EXPECT_EQ(i.num_chunks, 1);
  EXPECT_EQ(i.src_position, 1);
  EXPECT_EQ(i.flags, kFlagFinal);
  EXPECT_EQ(s.recv_ports(i), (PortSet{{0, 3}, {2, 3}}));
  EXPECT_EQ(s.send_ports(i), (PortSet{{3, 1}}));

  EXPECT_EQ(s.lanes[2][0].verb, Verb::kWait);
  EXPECT_EQ(s.lanes[2][1].num_chunks, 2);
  EXPECT_EQ(s.lanes[2][1].dst_buffer(), Buffer::kScratch);
  EXPECT_TRUE(s.lanes[2][2].is(kFlagDirect));
  EXPECT_FALSE(s.lanes[2][3].is(kFlagDirect)) << "direct() is for one instruction";
  EXPECT_TRUE(s.lanes[2][4].is(kFlagCredit));
  EXPECT_EQ(s.lanes[2][4].num_chunks, 0);
}

TEST(Recorder, ThousandsOfPortSetsStayDistinct) {
  constexpr int kRanks = 4000;
  Recorder p(0, kRanks);
  p.chunks(1, 1);
  p.lane(0);
  for (int round = 0; round < 2; ++round)
    for (Rank peer = 1; peer < kRanks; ++peer)
      for (uint16_t tag = 0; tag < 3; ++tag) p.send(in(0), {{peer, tag}});
  const RankSchedule s = p.take();
  EXPECT_EQ(s.port_sets.size(), 1u + 3 * (kRanks - 1));
  size_t k = 0;
  for (int round = 0; round < 2; ++round)
    for (Rank peer = 1; peer < kRanks; ++peer)
      for (uint16_t tag = 0; tag < 3; ++tag) ASSERT_EQ(s.send_ports(s.lanes[0][k++]), (PortSet{{peer, tag}}));
}

using RecorderDeathTest = testing::Test;

TEST(RecorderDeathTest, WrongOperandsAbort) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto with = [](auto text) {
    Recorder p(0, 2);
    p.chunks(2, 2);
    p.lane(0);
    text(p);
  };
  EXPECT_DEATH(with([](Recorder& p) { p.send(in(2), {{1, 0}}); }), "check failed");
  EXPECT_DEATH(with([](Recorder& p) { p.send(in(0), {{0, 0}}); }), "check failed");
  EXPECT_DEATH(with([](Recorder& p) { p.send(in(0), {{2, 0}}); }), "check failed");
  EXPECT_DEATH(with([](Recorder& p) { p.send(in(0), PortSet{}); }), "check failed");
  EXPECT_DEATH(with([](Recorder& p) { p.copy(in(0), in(1)); }), "check failed");
  EXPECT_DEATH(with([](Recorder& p) { p.copy(in(0, 2), out(1)); }), "check failed");
}

}  // namespace
}  // namespace rondo
