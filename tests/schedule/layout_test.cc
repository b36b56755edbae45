// The layout of a schedule is frozen: the engine, the CUDA interpreter and recorded traces read these bytes. A change
// here changes the format; make it deliberately.
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "rondo/schedule.h"

namespace rondo {
namespace {

TEST(Layout, InstructionIsSixteenBytes) {
  EXPECT_EQ(sizeof(Instruction), 16u);
  EXPECT_EQ(alignof(Instruction), 2u);
  EXPECT_TRUE(std::is_trivially_copyable_v<Instruction>);
  EXPECT_EQ(offsetof(Instruction, verb), 0u);
  EXPECT_EQ(offsetof(Instruction, buffers), 1u);
  EXPECT_EQ(offsetof(Instruction, flags), 2u);
  EXPECT_EQ(offsetof(Instruction, reserved), 3u);
  EXPECT_EQ(offsetof(Instruction, recv_set), 4u);
  EXPECT_EQ(offsetof(Instruction, send_set), 6u);
  EXPECT_EQ(offsetof(Instruction, src_first), 8u);
  EXPECT_EQ(offsetof(Instruction, dst_first), 10u);
  EXPECT_EQ(offsetof(Instruction, num_chunks), 12u);
  EXPECT_EQ(offsetof(Instruction, src_position), 14u);
}

TEST(Layout, PortIsEightBytes) {
  EXPECT_EQ(sizeof(Port), 8u);
  EXPECT_EQ(offsetof(Port, peer), 0u);
  EXPECT_EQ(offsetof(Port, tag), 4u);
  EXPECT_EQ(offsetof(Port, group), 6u);
  EXPECT_EQ(kUnicast, 0);
  EXPECT_EQ(kGroupAll, 1);
  EXPECT_EQ(kGroupHost, 2);
}

TEST(Layout, VerbIsItsSourcesAndSinks) {
  struct Row {
    Verb verb;
    int value;
    const char* name;
  };
  const Row rows[] = {{Verb::kWait, 0, "wait"},
                      {Verb::kCopy, 5, "copy"},
                      {Verb::kRecv, 6, "recv"},
                      {Verb::kRecvReduceCopy, 7, "recv_reduce_copy"},
                      {Verb::kSend, 9, "send"},
                      {Verb::kRecvSend, 10, "recv_send"},
                      {Verb::kRecvReduceSend, 11, "recv_reduce_send"},
                      {Verb::kCopySend, 13, "copy_send"},
                      {Verb::kRecvCopySend, 14, "recv_copy_send"},
                      {Verb::kRecvReduceCopySend, 15, "recv_reduce_copy_send"}};
  for (const Row& row : rows) {
    EXPECT_EQ(static_cast<int>(row.verb), row.value);
    EXPECT_EQ(verb_name(row.verb), row.name);
  }
  EXPECT_EQ(kVerbSrc, 1);
  EXPECT_EQ(kVerbRecv, 2);
  EXPECT_EQ(kVerbDst, 4);
  EXPECT_EQ(kVerbSend, 8);
}

TEST(Layout, EnumValues) {
  EXPECT_EQ(static_cast<int>(Buffer::kIn), 0);
  EXPECT_EQ(static_cast<int>(Buffer::kOut), 1);
  EXPECT_EQ(static_cast<int>(Buffer::kScratch), 2);
  EXPECT_EQ(kFlagFinal, 1);
  EXPECT_EQ(kFlagDirect, 2);
  EXPECT_EQ(kFlagCredit, 4);
  EXPECT_EQ(static_cast<int>(Collective::kAllReduce), 0);
  EXPECT_EQ(static_cast<int>(Collective::kReduceScatter), 1);
  EXPECT_EQ(static_cast<int>(Collective::kAllGather), 2);
}

TEST(Layout, BuffersPackIntoOneByte) {
  Instruction i;
  i.buffers = static_cast<uint8_t>(Buffer::kScratch) | static_cast<uint8_t>(Buffer::kOut) << 4;
  EXPECT_EQ(i.src_buffer(), Buffer::kScratch);
  EXPECT_EQ(i.dst_buffer(), Buffer::kOut);
}

}  // namespace
}  // namespace rondo
