// Steps: executes a schedule on symbols instead of numbers, and sorts it into textbook steps.
//
// Every input chunk starts as a symbol ("rank 1's input chunk 0"). Every reduction makes an expression that keeps the
// order of its operands. The step of a message is its depth in the dependency graph: a rank sends its own input in step
// 1. A message that depends on a message of step s belongs to step s + 1. A direct read from or write to a peer's
// buffer counts as a message.
//
// Not a proof: it runs one order of the lanes with unbounded connections (the checker proves the others). Thread
// safety: pure functions. O(instructions x chunks per message).
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
  Rank rank = -1;                 // an input chunk's rank (-1: unwritten memory)
  int chunk = 0;                  // chunk of the input; for a sum, of its first operand
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

/// At the end of step `step` the rank holds this value only to send it on in the next step.
struct StepHeld {
  int step = 0;
  Rank rank = 0;
  ExprPtr value;
};

/// A barrier: from the end of step `step` on, the rank knows that all of these ranks have come.
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
  std::vector<StepWrite> summed;      // complete sums on the ranks that formed them (buffer kIn: the input's chunk)
  std::vector<StepHeard> heard;       // ascending step; barriers only
  std::vector<std::vector<std::vector<int>>> done_steps;  // step by rank, lane, pc; shorter if stuck
  std::string stuck;                                      // not empty: the reason why the schedule cannot complete
};

/// Any schedule with a valid shape (check_shape), proven or not.
SymbolicRun run_symbolically(const Schedule& schedule);
/// The step of an instruction; -1: it never runs.
int step_of(const Schedule& schedule, const SymbolicRun& run, Rank rank, int lane, int pc);

/// A partial sum in a message or in a rank's memory; nullptr: every sum is completed at once.
const Expr* first_partial_sum(const SymbolicRun& run);

}  // namespace rondo
