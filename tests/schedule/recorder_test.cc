// Recorder: verbs become instructions, equal port sets share an entry, wrong statements are reported.
#include "rondo/recorder.h"

#include <gtest/gtest.h>

#include <string>

namespace rondo {
namespace {

TEST(Recorder, WritesDownWhatTheVerbSays) {
  Recorder p(1, 4);
  p.chunks(4, 4, 4);
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

std::string error_of(void (*text)(Recorder&)) {
  Recorder p(0, 2);
  p.chunks(2, 2, 2);
  p.lane(0);
  text(p);
  const size_t place = p.error().find("rank 0 of 2");  // after this file's line
  return place == std::string::npos ? p.error() : p.error().substr(place);
}

TEST(Recorder, NamesTheFirstWrongStatement) {
  EXPECT_EQ(error_of([](Recorder& p) { p.copy(in(0), out(1)); }), "");
  EXPECT_EQ(
      error_of([](Recorder& p) {
        p.send(in(2), {{1, 0}});
      }),
      "rank 0 of 2 lane 0 pc 0 (send): names in[2], which does not exist: in has 2 chunks (in[0] to in[1]); correct "
      "the index, or the numbers given to chunks()");
  EXPECT_EQ(
      error_of([](Recorder& p) {
        p.send(in(0), {{0, 0}});
      }),
      "rank 0 of 2 lane 0 pc 0 (send): sends to rank 0, which is itself: name another rank, or move the chunk within "
      "the rank with copy()");
  EXPECT_EQ(
      error_of([](Recorder& p) {
        p.copy(in(0), out(1));
        p.send(in(0), {{2, 0}});
        p.send(in(9), {{1, 0}});
      }),
      "rank 0 of 2 lane 0 pc 1 (send): sends to rank 2, which does not exist: the ranks are 0 to 1; is a \"% nranks\" "
      "missing?");
  EXPECT_NE(error_of([](Recorder& p) { p.send(in(0), PortSet{}); }).find("no rank: its set of ports is empty"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.copy(in(0), in(1)); }).find("writes into in"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.copy(in(0, 2), out(1)); }).find("moves 2 chunks to 1"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.recv_reduce_copy({{1}}, in(0), out(0), own_after(2), Sum::kFinal); })
                .find("after 2 received ones"),
            std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.chunks(1, 0); }).find("out into 0"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.chunks(1, 2, 3); }).find("scratch into 3"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.lane(-1); }).find("has no lane -1"), std::string::npos);
  EXPECT_NE(error_of([](Recorder& p) { p.wait(0, -1); }).find("no lane 0 pc -1"), std::string::npos);
  Recorder p(0, 2);
  p.chunks(1, 1);
  p.copy(in(0), out(0));
  EXPECT_EQ(p.error().substr(p.error().find("rank")),
            "rank 0 of 2: a verb precedes the first lane(): call lane(0) first");
}

TEST(Recorder, NamesTheLineOfTheText) {
  Recorder p(0, 2);
  TextLines lines;
  p.keep_lines(&lines);
  p.chunks(1, 1);
  p.lane(1);
  const int first = __LINE__ + 1;
  p.send(in(0), {{1, 0}});
  p.recv({{1, 0}}, out(0));
  p.wait(1, 0);
  ASSERT_EQ(lines.size(), 2u);
  ASSERT_EQ(lines[1].size(), 3u);
  for (int k = 0; k < 3; ++k)
    EXPECT_EQ(lines[1][static_cast<size_t>(k)].text(), "recorder_test.cc:" + std::to_string(first + k));
  p.send(in(1), {{1, 0}});
  EXPECT_EQ(p.error().find("recorder_test.cc:" + std::to_string(first + 7) + ": rank 0 of 2 lane 1 pc 3 (send): "), 0u)
      << p.error();
  EXPECT_EQ(TextLine{}.text(), "");
}

TEST(Recorder, RecordsNothingBehindAWrongStatement) {
  Recorder p(0, 2);
  p.chunks(1, 1);
  p.lane(0);
  p.send(in(0), {{1, 0}});
  p.send(in(1), {{1, 0}});
  p.recv({{1, 0}}, out(0));
  p.wait(0, 0);
  EXPECT_EQ(p.take().lanes[0].size(), 1u);
}

}  // namespace
}  // namespace rondo
