// The checker's messages for typical mistakes of students: the whole message, with the definition's lines, both ranks,
// both chunks and the remedy; and how far `rondo explain --unproven` draws each of them.
// labels: unit
// timeout: 60
#include <gtest/gtest.h>

#include <string>

#include "schedule/checker.h"
#include "schedule/renderer.h"
#include "schedule/student_texts.h"

namespace rondo {
namespace {

using Text = void (*)(Recorder&, Rank, int, Rank);

/// The message for three ranks.
std::string message(Collective collective, Text text) {
  const Algorithm a = student::row(collective, text);
  const UnprovenSchedule recorded = record_unproven(a, 3);
  return recorded.error.empty() ? check_algorithm(a, 3).reason : recorded.error;
}
std::string of_all_reduce(Text text) { return message(Collective::kAllReduce, text); }
std::string of_all_gather(Text text) { return message(Collective::kAllGather, text); }

TEST(StudentMistakes, NoneInTheRing) {
  EXPECT_EQ(of_all_reduce(student::ring), "takes 4 steps where 0 are claimed") << "the text is right, its cost is not";
}

TEST(StudentMistakes, WrongChunkAdded) {
  EXPECT_EQ(
      of_all_reduce(student::wrong_chunk),
      "mine.h:6: rank 1 lane 0 pc 1 (recv_reduce_send in[0], from {0}, to {2}, own after 1): adds contributions to "
      "different chunks: data from rank 0 lane 0 pc 0 (mine.h:5: send in[2], to {1}) is of chunk 2, and rank 1's "
      "own in[0] is of chunk 0; correct the chunk in one of the two lines");
}

TEST(StudentMistakes, WrongChunkWritten) {
  EXPECT_EQ(
      of_all_gather(student::wrong_place),
      "rank 0 ends with out[1] holding rank 2's in[0] instead of rank 1's in[0]; rank 0 lane 0 pc 1 (mine.h:6: "
      "recv_copy_send from {2}, into out[1], to {1}) writes it, with data from rank 2 lane 0 pc 0 (mine.h:5: copy_send "
      "in[0], into out[2], to {0}). Correct the chunk or the rank in one of these lines");
}

TEST(StudentMistakes, SendToSelf) {
  EXPECT_EQ(
      of_all_reduce(student::send_to_self),
      "mine.h:5: rank 0 of 3 lane 0 pc 0 (send): sends to rank 0, which is itself: name another rank, or move the "
      "chunk within the rank with copy()");
}

TEST(StudentMistakes, SendToARankThatDoesNotExist) {
  EXPECT_EQ(
      of_all_reduce(student::send_beyond),
      "mine.h:5: rank 2 of 3 lane 0 pc 0 (send): sends to rank 3, which does not exist: the ranks are 0 to 2; is a "
      "\"% nranks\" missing?");
}

TEST(StudentMistakes, MissingReceive) {
  EXPECT_EQ(of_all_reduce(student::missing_receive),
            "rank 1 never receives 1 message that rank 0 sends to it with tag 0: rank 0 lane 0 pc 3 (mine.h:8: "
            "recv_copy_send from {2}, into out[2], to {1}) sends it; add the recv to rank 1, or take the send out");
  EXPECT_EQ(of_all_gather(student::no_receive_at_all),
            "rank 1 never receives the message that rank 0 sends to it: rank 0 lane 0 pc 1 (mine.h:6: send in[0], to "
            "{1}); add the "
            "recv to rank 1, or take the send out");
}

TEST(StudentMistakes, MissingSend) {
  EXPECT_EQ(
      of_all_reduce(student::missing_send),
      "mine.h:8: rank 0 lane 0 pc 3 (recv from {2}, into out[2]): deadlock with FIFOs of 2: rank 0 lane 0 pc 3 "
      "(mine.h:8) waits for a message from rank 2 (tag 0); rank 1 lane 0 pc 3 (mine.h:8) waits for a message from "
      "rank 0 (tag 0); rank 2 lane 0 pc 3 (mine.h:8) waits for a message from rank 1 (tag 0). Each waits for another: "
      "send earlier, or add the missing send");
  EXPECT_EQ(of_all_gather(student::last_send_forgotten),
            "mine.h:10: rank 1 lane 0 pc 2 (recv from {0}, into out[2]): deadlock with FIFOs of 1: rank 1 lane 0 pc 2 "
            "(mine.h:10) waits for a message from rank 0 (tag 0), which has ended after sending 1 message. Add the "
            "missing send, or take the recv out");
}

TEST(StudentMistakes, AllReceiveFirst) {
  EXPECT_EQ(
      of_all_gather(student::all_receive_first),
      "mine.h:7: rank 0 lane 0 pc 1 (recv from {2}, into out[2]): deadlock with FIFOs of 1: rank 0 lane 0 pc 1 "
      "(mine.h:7) waits for a message from rank 2 (tag 0); rank 1 lane 0 pc 1 (mine.h:7) waits for a message from "
      "rank 0 (tag 0); rank 2 lane 0 pc 1 (mine.h:7) waits for a message from rank 1 (tag 0). Each waits for another: "
      "send earlier, or add the missing send");
}

TEST(StudentMistakes, BadIndex) {
  EXPECT_EQ(of_all_reduce(student::bad_index),
            "mine.h:9: rank 2 of 3 lane 0 pc 4 (recv): names out[3], which does not exist: out has 3 chunks (out[0] to "
            "out[2]); correct the index, or the numbers given to chunks()");
}

TEST(StudentMistakes, MissingWait) {
  EXPECT_EQ(
      of_all_gather(student::missing_wait),
      "mine.h:8: rank 0 lane 1 pc 0 (send out[0], to {1}): reads out[0] of rank 0 without being ordered after rank "
      "0 lane 0 pc 0 (mine.h:5: copy in[0], into out[0]): the lanes of a rank run at the same time, so call "
      "wait(0, 0) in lane 1 before this");
  EXPECT_EQ(of_all_gather(student::missing_wait_for_a_later_lane),
            "mine.h:4: rank 0 lane 0 pc 0 (send out[0], to {1}): reads out[0] before anything is written there: rank 0 "
            "lane 1 pc 0 (mine.h:6: copy in[0], into out[0]) writes it; the lanes of a rank run at the same time, so "
            "call wait(1, 0) in lane 0 before this");
}

TEST(StudentMistakes, WrongFinal) {
  EXPECT_EQ(of_all_reduce(student::final_forgotten),
            "mine.h:7: rank 0 lane 0 pc 2 (recv_reduce_copy_send in[0], from {2}, into out[0], to {1}, own after 1): "
            "completes a sum without the final flag: with this, chunk 0 holds all 3 contributions; pass Sum::kFinal "
            "here");
  EXPECT_EQ(
      of_all_reduce(student::final_too_early),
      "mine.h:7: rank 1 lane 0 pc 1 (recv_reduce_send in[2], from {0}, to {2}, own after 1, final): calls a sum "
      "final that is not complete: chunk 2 still lacks the contributions of ranks {2}; pass Sum::kFinal only where "
      "the last contribution is added");
}

TEST(StudentMistakes, ContributionForgottenOrAddedTwice) {
  EXPECT_EQ(of_all_reduce(student::own_forgotten),
            "rank 0 ends with out[0] lacking the contributions of ranks {0}; rank 0 lane 0 pc 1 (mine.h:9: "
            "recv_reduce_copy out[0], from {2}, into out[0], own after 0) writes it, with data from rank 2 lane 0 pc 0 "
            "(mine.h:5: send in[0], to {0}). Add what is missing before that");
  EXPECT_EQ(
      of_all_reduce(student::added_twice),
      "mine.h:10: rank 1 lane 0 pc 3 (recv_reduce_copy out[0], from {0}, into out[0], own after 1, final): adds the "
      "contributions of ranks {0} twice: they are in data from rank 0 lane 0 pc 2 (mine.h:8: send out[0], to {1}) "
      "and in rank 1's own out[0]; add each of them once");
}

TEST(StudentMistakes, ChunksThatDiffer) {
  EXPECT_EQ(of_all_reduce([](Recorder& p, Rank rank, int n, Rank) { p.chunks(rank == 1 ? 2 : n, n); }),
            "rank 1 calls chunks(2, 3) and rank 0 calls chunks(3, 3): all ranks must use the same numbers");
  EXPECT_EQ(of_all_gather([](Recorder& p, Rank, int n, Rank) { p.chunks(n, n); }),
            "rank 0 calls chunks(3, 3): 3 chunks in and 3 out do not fit the collective; 3 ranks of all_gather need "
            "chunks(1, 3), or a multiple of both");
}

// --- drawings -----------------------------------------------------------------------------------------------------

Explained drawn(Collective collective, Text text) {
  ExplainOptions options;
  options.hosts = 3;
  return explain_unproven(student::row(collective, text), options);
}

TEST(Unproven, IsDrawnAsFarAsTheWrongStep) {
  const Explained e = drawn(Collective::kAllReduce, student::wrong_chunk);
  EXPECT_FALSE(e.right);
  EXPECT_EQ(e.text,
            "mine all_reduce, 3 ranks: my own\n"
            "\n"
            "how to read it\n"
            "  A1       chunk 1 of rank 0's input; the ranks are A, B, C, ...\n"
            "  (C1+A2)  a sum on its way, written in the order of addition\n"
            "  S1       the complete sum of chunk 1; + stands for any operator\n"
            "  .        nothing yet\n"
            "  ?        unwritten memory\n"
            "\n"
            "before step 1\n"
            "  rank  in 0  in 1  in 2\n"
            "  0 A   A0    A1    A2\n"
            "  1 B   B0    B1    B2\n"
            "  2 C   C0    C1    C2\n"
            "\n"
            "step 1: reduce\n"
            "  0->1  A2\n"
            "  1->2  B0\n"
            "  2->0  C1\n"
            "after step 1\n"
            "  rank  out 0  out 1  out 2  on its way, to be sent next\n"
            "  0 A   .      .      .      (C1+A2)\n"
            "  1 B   .      .      .      (A2+B0)\n"
            "  2 C   .      .      .      (B0+C1)\n"
            "\n"
            "wrong in step 1: " +
                of_all_reduce(student::wrong_chunk) + "\n");
}

TEST(Unproven, SaysInWhichStepItGoesWrong) {
  const struct {
    Collective collective;
    Text text;
    std::string where, last_step, no_step;
  } cases[] = {
      {Collective::kAllReduce, student::send_to_self, "\nwrong before step 1: ", "", "step 1"},
      {Collective::kAllReduce, student::bad_index, "\nwrong in step 4: ", "step 4: all-gather", "step 5"},
      {Collective::kAllReduce, student::missing_send, "\nwrong after step 2: ", "step 2: reduce-scatter", "step 3"},
      {Collective::kAllReduce, student::missing_receive, "\nwrong: rank 1 never", "step 4: all-gather", "step 5"},
      {Collective::kAllGather, student::wrong_place, "\nwrong: rank 0 ends", "step 2: all-gather", "done"},
      {Collective::kAllReduce, student::final_forgotten, "\nwrong in step 2: ", "step 2: reduce-scatter", "step 3"},
      {Collective::kAllGather, student::missing_wait, "\nwrong in step 1: ", "step 1: all-gather", "step 2"},
  };
  for (const auto& c : cases) {
    const Explained e = drawn(c.collective, c.text);
    EXPECT_FALSE(e.right);
    EXPECT_NE(e.text.find(c.where), std::string::npos) << c.where << "\n" << e.text;
    EXPECT_NE(e.text.find(c.last_step), std::string::npos) << c.last_step << "\n" << e.text;
    const std::string drawing = e.text.substr(0, e.text.find("\nwrong"));
    EXPECT_EQ(drawing.find("\n" + c.no_step), std::string::npos) << c.no_step << "\n" << e.text;
  }
}

TEST(Unproven, BuffersThatCannotBeDrawnAreNamed) {
  const Explained e =
      drawn(Collective::kAllReduce, [](Recorder& p, Rank rank, int n, Rank) { p.chunks(rank == 1 ? 2 : n, n); });
  EXPECT_EQ(
      e.text,
      "mine all_reduce, 3 ranks: my own\n\nwrong: rank 1 calls chunks(2, 3) and rank 0 calls chunks(3, 3): all ranks "
      "must use the same numbers\n");
}

TEST(Unproven, WhatIsRightIsDrawnAsEver) {
  ExplainOptions options;
  options.hosts = 3;
  const Algorithm& ring = *find_algorithm(Collective::kAllReduce, "ring");
  const Explained e = explain_unproven(ring, options);
  EXPECT_TRUE(e.right);
  EXPECT_EQ(e.text, explain(ring, options));
}

}  // namespace
}  // namespace rondo
