// What an OperationQueue finds out when it has waited long: who aborted, who calls something else, who is gone, who is
// late. Slow paths only; every sentence names this rank, the operation, the peer and the place where it stands.
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/registry.h"
#include "engine/queue.h"

namespace rondo {
namespace {

constexpr uint64_t kStillnessNs = 500'000'000;  // so long without any movement: what looked harmless was not
constexpr uint64_t kMismatchPatienceNs = 200'000'000;  // until the peer has written down what it calls

std::string describe_shape(const OperationShape& s) {
  std::string text = fmt::format("{} of {} {}", collective_name(s.collective), s.count_elems, dtype_name(s.dtype));
  if (collective_reduces(s.collective)) text += fmt::format(" {}", op_name(s.op));
  return text;
}

std::string algorithm_name(const OperationShape& s) {
  const auto all = all_algorithms();
  return s.algorithm < all.size() ? std::string(all[s.algorithm].name) : fmt::format("algorithm {}", s.algorithm);
}

std::string difference(const OperationShape& a, const OperationShape& b) {
  if (a.collective != b.collective) return "the operation";
  if (a.count_elems != b.count_elems) return "count_elems";
  if (a.dtype != b.dtype) return "dtype";
  if (a.op != b.op) return "op";
  return "the algorithm";
}

}  // namespace

std::string OperationQueue::describe(const Operation& op) const {
  const OperationShape& s = op.program->operation;
  return fmt::format("rank {}: operation #{} ({}, {} {}{})", rank_, op.sequence, describe_shape(s), algorithm_name(s),
                     protocol_name(op.program->protocol), op.tag != 0 ? fmt::format(", tag {}", op.tag) : "");
}

bool OperationQueue::check_abort() {
  const std::optional<Rank> by = transport_.aborted_by();
  if (!by) return false;
  const Operation* op = oldest();
  fail(Status(StatusCode::kAborted, fmt::format("{}: rank {} aborted the communicator",
                                                op != nullptr ? describe(*op) : fmt::format("rank {}", rank_), *by)));
  return true;
}

void OperationQueue::diagnose(uint64_t waited_ns) {
  Operation* op = oldest();
  if (op == nullptr || check_abort()) return;
  const uint64_t now = monotonic_ns();
  if (op->waiting_since_ns == 0) op->waiting_since_ns = now - waited_ns;
  const uint64_t waited = now - op->waiting_since_ns;
  if (Status s = find_mismatch(*op, waited); !s.ok()) return fail(s);
  constexpr uint64_t kLossCheckNs = 10'000'000;
  if (waited >= kLossCheckNs) {
    if (auto loss = find_lost(*op, waited_ns))
      return fail(Status(StatusCode::kPeerLost, fmt::format("{}: rank {} is lost: {}; {}", describe(*op), loss->rank,
                                                            loss->how, blocked_on(*op))));
  }
  if (!op->reach_error.ok() && waited >= kMismatchPatienceNs)
    return fail(Status(op->reach_error.code(), fmt::format("{}: {}", describe(*op), op->reach_error.message())));
  if (waited >= op->deadline_ns) fail(timed_out(*op, waited));
}

// A rank that has finished `op` has sent all that it had to send for it: that it is gone now does not matter, unless
// nothing moves any more: transports report the first death only, and a second one may be what stops us.
std::optional<PeerLoss> OperationQueue::find_lost(const Operation& op, uint64_t waited_ns) const {
  auto finished = [&](Rank r) {
    OperationBoard* board = transport_.board(r);
    return board != nullptr && board->last_finished() >= op.sequence;
  };
  // Who died comes before who left: the others leave when they notice the death. Who left is read first, since the
  // death that made them leave is then there to be seen.
  std::optional<PeerLoss> left;
  for (Rank r = 0; r < nranks_ && !left; ++r)
    if (r != rank_ && transport_.departed(r) && !finished(r)) left = PeerLoss{r, "it has destroyed its communicator"};
  std::optional<PeerLoss> died = transport_.find_lost();
  return died && (!finished(died->rank) || waited_ns >= kStillnessNs) ? died : left;
}

// Every rank's board is compared with ours, so that all ranks notice a mismatch, not only the neighbours: at the place of
// this operation, and at the last place that the other rank has reached (an operation without elements leaves no
// message behind that could tell).
Status OperationQueue::find_mismatch(const Operation& op, uint64_t waited_ns) {
  for (Rank r = 0; r < nranks_; ++r) {
    OperationBoard* board = r != rank_ ? transport_.board(r) : nullptr;
    if (board == nullptr) continue;
    for (const uint64_t sequence : {op.sequence, std::min(board->last_posted(), op.sequence)}) {
      const std::optional<OperationShape> mine =
          sequence == op.sequence ? op.shape() : board_.find(sequence);
      const std::optional<OperationShape> theirs = board->find(sequence);
      if (!mine || !theirs || *theirs == *mine) continue;
      return Status(StatusCode::kMismatch,
                    fmt::format("operation #{}: ranks disagree on {}: rank {} calls {} ({}), rank {} calls {} ({})",
                                sequence, difference(*mine, *theirs), rank_, describe_shape(*mine),
                                algorithm_name(*mine), r, describe_shape(*theirs), algorithm_name(*theirs)));
    }
  }
  if (op.mismatch_with >= 0 && waited_ns >= kMismatchPatienceNs)
    return Status(StatusCode::kMismatch, fmt::format("{}: rank {} sends the messages of another operation", describe(op),
                                                     op.mismatch_with));
  return {};
}

std::string OperationQueue::blocked_on(const Operation& op) const {
  const Program& p = *op.program;
  for (size_t lane = 0; lane < p.lanes.size(); ++lane) {
    const LaneState& at = op.lanes[lane];
    if (p.lanes[lane].empty() || at.loop >= p.num_loops || !op.started) continue;
    const ProgramStep& s = p.lanes[lane][at.pc];
    const std::string where = fmt::format("step {} of lane {} in loop {} of {} ({})", at.pc, lane, at.loop, p.num_loops,
                                          verb_name(s.verb));
    const uint64_t n = std::min(p.loop_elems, s.src.num_elems);
    const uint32_t steps = s.is(kFlagCredit) ? 1 : p.steps_of_message(n);
    for (const ReadPort* r : s.recv)
      if (r->fifo.arrived(1, p.fingerprint) != Arrival::kReady)
        return fmt::format("it waits for data from rank {} in {}", r->key.writer, where);
    for (WritePort* w : s.send)
      if (!w->fifo.room(steps))
        return fmt::format("it waits for room at {} in {}",
                           w->key.reader >= 0 ? fmt::format("rank {}", w->key.reader) : "the slowest rank", where);
  }
  return "it has not started";
}

Status OperationQueue::timed_out(const Operation& op, uint64_t waited_ns) {
  std::string late;
  for (Rank r = 0; r < nranks_; ++r) {
    OperationBoard* board = r != rank_ ? transport_.board(r) : nullptr;
    if (board == nullptr || board->last_posted() >= op.sequence) continue;
    const uint64_t last = board->last_posted();
    const std::optional<OperationShape> shape = board->find(last);
    late += fmt::format("; rank {} has not called it (its last operation is {})", r,
                        shape ? fmt::format("#{}, {}, {}", last, describe_shape(*shape),
                                            board->last_finished() >= last ? "finished" : "under way")
                              : "none");
  }
  if (late.empty()) late = "; all ranks have called it";
  return Status(StatusCode::kTimeout,
                fmt::format("{} waited {:.1f} s{}; {}", describe(op), static_cast<double>(waited_ns) * 1e-9, late,
                            blocked_on(op)));
}

}  // namespace rondo
