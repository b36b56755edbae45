// Steps: a schedule executed on symbols instead of numbers, and sorted into textbook steps.
//
// Every input chunk starts as a symbol ("rank 1's input chunk 0"), every reduction makes an expression that
// remembers in which order its operands are added. A message belongs to the step that equals its depth in the graph of
// dependencies: a rank's own input goes out in step 1, and what can only be sent after a message of step s has arrived
// goes out in step s + 1. Data that a direct instruction reads from or writes into a peer's buffer counts as a message.
//
// Not a proof: it runs one order of the lanes with unbounded connections (src/schedule's checker proves the others).
// Thread safety: pure functions. O(instructions x chunks per message).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/schedule.h"

namespace rondo {

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

/// One rank's input chunk, or a sum of expressions.
struct Expr {
  Rank rank = -1;                 // an input chunk: whose (-1: memory that nobody wrote)
  int chunk = 0;                  // which chunk of the input; of a sum: that of its first operand
  std::vector<ExprPtr> operands;  // a sum: in the order of addition; empty: an input chunk
  int num_terms = 1;              // input chunks in it
  bool complete = false;          // every rank's contribution to one chunk, each once
  bool is_sum() const { return !operands.empty(); }
};

struct StepMessage {
  enum class Kind { kMessage, kCredit, kPull, kPush };
  Kind kind = Kind::kMessage;
  int step = 0;  // 1, 2, ...
  Rank from = 0;
  std::vector<Rank> to;
  std::vector<ExprPtr> values;  // one for each chunk; none in a credit
};

/// From the end of step `step` on (0: from the start), this chunk holds this value.
struct StepWrite {
  int step = 0;
  Rank rank = 0;
  Buffer buffer = Buffer::kOut;
  int chunk = 0;
  ExprPtr value;
};

/// At the end of step `step` the rank has this value in hand only to send it on in the next one.
struct StepHeld {
  int step = 0;
  Rank rank = 0;
  ExprPtr value;
};

/// A barrier: from the end of step `step` on, the rank knows that all of these have come.
struct StepHeard {
  int step = 0;
  Rank rank = 0;
  std::vector<bool> of;  // by rank
};

struct SymbolicRun {
  int num_steps = 0;
  std::vector<StepMessage> messages;  // ascending step, then sender
  std::vector<StepWrite> writes;      // ascending step
  std::vector<StepHeld> held;         // ascending step, then rank
  std::vector<StepWrite> summed;      // complete sums, where a rank formed them itself (buffer kIn: the input's chunk)
  std::vector<StepHeard> heard;       // ascending step; barriers only
  std::vector<std::vector<std::vector<int>>> done_steps;  // by rank, lane, pc: in which step; shorter where stuck
  std::string stuck;                  // not empty: why the schedule cannot go on (a bug of its author)
};

/// Any schedule whose shape is right (check_shape), proven or not.
SymbolicRun run_symbolically(const Schedule& schedule);
/// The step in which an instruction takes place; -1: it never does.
int step_of(const Schedule& schedule, const SymbolicRun& run, Rank rank, int lane, int pc);

/// That a message carries or a rank keeps; nullptr: every sum is completed at once.
const Expr* first_partial_sum(const SymbolicRun& run);

}  // namespace rondo
