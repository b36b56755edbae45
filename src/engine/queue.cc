#include "engine/queue.h"

#include <algorithm>

#include "engine/progress.h"
#include "engine/tracing.h"

namespace rondo {
namespace {

bool overlap(const std::byte* a, uint64_t a_bytes, const std::byte* b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

// Returns true if neither writes memory that the other reads or writes. Both may read the same memory.
bool independent(const Operation& x, const Operation& y) {
  return !overlap(x.out, x.out_bytes, y.out, y.out_bytes) && !overlap(x.out, x.out_bytes, y.in, y.in_bytes) &&
         !overlap(x.in, x.in_bytes, y.out, y.out_bytes);
}

}  // namespace

// The last waiting thread has left while operations are outstanding.
void OperationQueue::kick_helper() {
  if (ProgressThread* helper = helper_.load(std::memory_order_acquire)) helper->kick(*this);
}

void OperationQueue::begin(Operation& op) {
  const Program& p = *op.program;
  op.planned = &p;
  op.load(&p);
  if (const uint64_t scratch = std::max(p.scratch_bytes, op.fallback ? op.fallback->scratch_bytes : 0))
    op.scratch.resize(scratch);
  if (p.direct) {
    op.peer_in.assign(static_cast<size_t>(nranks_), {});
    op.peer_out.assign(static_cast<size_t>(nranks_), {});
    // A buffer that this rank does not have is never used. The peers need not reach it.
    auto describe = [this](const std::byte* at, uint64_t bytes) {
      return bytes != 0 ? transport_.describe(at, bytes) : RemoteAddress{RemoteAddress::kNothing, 0};
    };
    op.peer_in[static_cast<size_t>(rank_)] = describe(op.in, op.in_bytes);
    op.peer_out[static_cast<size_t>(rank_)] = describe(op.out, op.out_bytes);
    if (p.pushes && op.peer_out[static_cast<size_t>(rank_)].region == RemoteAddress::kByCopy)
      op.peer_out[static_cast<size_t>(rank_)] = {};  // readable but not writable
  }
  op.started = true;
}

void OperationQueue::begin_alone(Operation& op) {
  alone_ = &op;
  number(op);
  begin(op);
  step_lanes(op);  // its first messages are sent before the bookkeeping
  announce(op);
  if (is_complete(op)) complete(op, {});
}

bool OperationQueue::step_alone(Operation& op) {
  const bool moved = step_lanes(op);
  if (op.done.load(std::memory_order_relaxed) || !is_complete(op)) return moved;
  complete(op, {});
  return true;
}

bool OperationQueue::step_lanes(Operation& op) {
  bool moved = false;
  executor_.forget_missing();
  for (uint32_t i = 0; i < op.program->lanes.size(); ++i) {
    if (op.program->lanes[i].empty()) continue;
    while (op.lanes[i].loop < op.program->num_loops && executor_.step(op, i)) {
      moved = true;
      // If a message arrived before its receive was posted, take it at once. Otherwise the transport would always be
      // one message ahead and would never deliver to the destination buffer.
      if (!needs_progress_ || !receives_next(op, i)) [[likely]]
        break;
    }
  }
  // When an operation has finished, rest() sends the last messages.
  if (needs_progress_ && (op.lanes_left != 0 || !ports_.open_sends().empty())) [[unlikely]]
    moved |= transport_.progress();
  return moved;
}

bool OperationQueue::receives_next(const Operation& op, uint32_t lane) {
  const LaneState& at = op.lanes[lane];
  return at.loop < op.program->num_loops && !op.program->lanes[lane][at.pc].recv.empty();
}

uint64_t OperationQueue::next_in_pair(const Operation& op) {
  const OperationShape& s = op.program->operation;
  std::vector<uint64_t>& calls = s.collective == Collective::kSend ? sent_to_ : received_from_;
  calls.resize(2 * static_cast<size_t>(nranks_));
  return ++calls[s.root + (is_matched(s) ? static_cast<size_t>(nranks_) : 0)];
}

void OperationQueue::admit(Operation& op) {
  number(op);
  if (has_failed()) return op.end(failure_);
  active_.push_back(&op);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
}

void OperationQueue::post(Operation& op, Planner& planner) {
  if (has_failed()) return op.end(failure_);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  matcher_.post(op, planner);
}

// Starts a receive whose message arrives now. If it waited for operations that have not started, the sender could wait
// for this rank, and they for the sender.
void OperationQueue::start_at_once(Operation& op) {
  begin(op);
  reserve_turns(op);
  active_.insert(std::ranges::find_if(active_, [](const Operation* o) { return !o->started; }), &op);
}

// Returns true if an operation may start. Operations start in order, because all ranks must send the messages of a
// connection in the same order.
bool OperationQueue::may_start(size_t index) const {
  const Operation& op = *active_[index];
  for (size_t i = 0; i < index; ++i) {
    const Operation& before = *active_[i];
    // A direct operation, or one with a fallback, does not run beside others, because it reserves no steps for the
    // fallback.
    auto alone = [](const Operation& o) { return o.program->direct || o.fallback != nullptr; };
    const bool share_ends = is_point_to_point(before.program) == is_point_to_point(op.program);
    if (!before.started || !independent(before, op)) return false;
    if (share_ends && (alone(before) || alone(op))) return false;
  }
  return true;
}

void OperationQueue::reserve_turns(Operation& op) {
  auto reserve = [](const auto& ends, std::vector<uint64_t>& first) {
    first.clear();
    for (const auto& [port, steps] : ends) {
      first.push_back(std::max(port->reserved, port->fifo.step()));
      port->reserved = first.back() + steps;
    }
  };
  reserve(op.program->reads, op.first_read_steps);
  reserve(op.program->writes, op.first_write_steps);
}

bool OperationQueue::start(size_t index) {
  if (!may_start(index)) return false;
  begin(*active_[index]);
  reserve_turns(*active_[index]);
  return true;
}

// Returns true if the lanes have finished and no peer reads the operation's buffers any more.
bool OperationQueue::is_complete(Operation& op) {
  OpenSends& sends = ports_.open_sends();
  if (op.lanes_left != 0) return false;
  if (sends.empty() || !sends.any(OpenSends::of(&op))) return true;
  constexpr uint32_t kMostLooks = 64;  // a late reader gets a copy, so that the caller need not wait for it
  if (++op.looks_at_end < kMostLooks) return false;
  sends.reclaim(OpenSends::of(&op));
  return sends.find(OpenSends::of(&op)) == nullptr;
}

bool OperationQueue::retire_if_done(size_t index) {
  Operation& op = *active_[index];
  if (!is_complete(op)) return false;
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(index));
  outstanding_.fetch_sub(1, std::memory_order_relaxed);
  complete(op, {});
  return true;
}

bool OperationQueue::step() {
  bool moved = matcher_.has_receives() && matcher_.step();
  for (size_t i = 0; i < active_.size();) {
    Operation& op = *active_[i];
    const bool starts = !op.started;
    if (starts && !start(i)) return moved;
    op.waits_for_turn = i != 0;
    moved |= step_lanes(op);
    if (starts) announce(op);
    if (retire_if_done(i)) moved = true;
    else ++i;
  }
  if (moved && idle()) rest();  // the driver may go on with other queues
  return moved;
}

uint64_t OperationQueue::place_of_oldest() {
  const Operation* op = oldest();
  auto place = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(op));
  if (op == nullptr || !op->started) return place;
  for (size_t i = 0; i < op->program->lanes.size(); ++i) place += op->lanes[i].loop << 16 | op->lanes[i].pc;
  return place;
}

void QueueWatch::find_stuck() {
  const uint64_t now = monotonic_ns();
  if (now - checked_ns_ < 1'000'000) return;
  checked_ns_ = now;
  places_.resize(queues_.size());
  for (size_t i = 0; i < queues_.size(); ++i) {
    OperationQueue& queue = *queues_[i];
    if (!queue.drive()) continue;
    const uint64_t place = queue.place_of_oldest();
    if (place == places_[i]) queue.diagnose(0);
    else queue.check_abort();
    places_[i] = place;
    queue.leave();
  }
}

void OperationQueue::complete(Operation& op, Status status) {
  if (alone_ == &op) alone_ = nullptr;
  if (status.ok()) finish(op);
  op.end(std::move(status));
}

void OperationQueue::fail(const Status& status, const Status& cause) {
  if (!has_failed()) {
    if (observer_ != nullptr) observer_->failing(status);
    failure_ = status;
    if (cause.code() != StatusCode::kInvalidArgument) {  // otherwise finalize() ended it: no cause for peers
      cause_ = cause;
      transport_.tell_failure(cause);
    }
    failed_.store(true, std::memory_order_release);
    ports_.open_sends().cancel(transport_);
  }
  if (alone_ != nullptr) complete(*alone_, failure_);
  while (!active_.empty()) {
    Operation* op = active_.front();
    active_.pop_front();
    outstanding_.fetch_sub(1, std::memory_order_relaxed);
    complete(*op, failure_);
  }
  for (Operation* op : matcher_.give_up()) {
    outstanding_.fetch_sub(1, std::memory_order_relaxed);
    complete(*op, failure_);
  }
}

Status OperationQueue::failure() const { return has_failed() ? failure_ : Status(); }

}  // namespace rondo
