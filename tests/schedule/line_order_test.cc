// Schedules that are kept in order by lines with flags: all registered ones, and the error in one that is not.
// labels: unit
#include <gtest/gtest.h>

#include "algorithms/registry.h"
#include "schedule/line_order.h"

namespace rondo {
namespace {

TEST(LineOrder, EveryRegisteredAlgorithm) {
  for (const Algorithm& a : all_algorithms())
    for (int nranks = 1; nranks <= 17; ++nranks)
      for (Rank r = 0; r < nranks; ++r) {
        const auto wrong = store_without_wait(record_rank(a, r, nranks, nranks / 2));
        EXPECT_FALSE(wrong) << collective_name(a.collective) << " by " << a.name << ", rank " << r << " of " << nranks
                            << ": " << *wrong;
      }
}

Instruction instruction(Verb verb, uint16_t src, uint16_t dst) {
  Instruction i;
  i.verb = verb;
  i.buffers = static_cast<uint8_t>(static_cast<int>(Buffer::kOut) | static_cast<int>(Buffer::kOut) << 4);
  i.src_first = src;
  i.dst_first = dst;
  return i;
}

RankSchedule two_lanes() {
  RankSchedule s;
  s.nranks = 2;
  s.in_chunks = s.out_chunks = 2;
  s.lanes.resize(2);
  return s;
}

TEST(LineOrder, AReadOfAnothersStoreNeedsAWait) {
  RankSchedule s = two_lanes();
  s.lanes[0] = {instruction(Verb::kRecv, 0, 1)};
  s.lanes[1] = {instruction(Verb::kSend, 1, 0)};
  ASSERT_TRUE(store_without_wait(s));
  EXPECT_NE(store_without_wait(s)->find("reads"), std::string::npos);
  s.lanes[1] = {instruction(Verb::kWait, 0, 0), instruction(Verb::kSend, 1, 0)};  // for lane 0, instruction 0
  EXPECT_FALSE(store_without_wait(s));
  s.lanes[1] = {instruction(Verb::kSend, 0, 0)};  // another chunk
  EXPECT_FALSE(store_without_wait(s));
}

TEST(LineOrder, TwoStoresNeedAWait) {
  RankSchedule s = two_lanes();
  s.lanes[0] = {instruction(Verb::kRecv, 0, 1)};
  s.lanes[1] = {instruction(Verb::kRecv, 0, 1)};
  ASSERT_TRUE(store_without_wait(s));
  EXPECT_NE(store_without_wait(s)->find("stores"), std::string::npos);
  s.lanes[0].push_back(instruction(Verb::kWait, 1, 0));
  EXPECT_TRUE(store_without_wait(s));  // too late
  s.lanes[0] = {instruction(Verb::kWait, 1, 0), instruction(Verb::kRecv, 0, 1)};
  EXPECT_FALSE(store_without_wait(s));
}

}  // namespace
}  // namespace rondo
