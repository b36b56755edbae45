#include "fsdp/pass.h"

namespace rondo::fsdp {

Engine::Pass::Pass(Engine& engine, Impl& impl, PassKind kind)
    : engine_(engine),
      impl_(impl),
      kind_(kind),
      actions_(impl.plan.pass(kind, impl.order)),
      uses_(impl.plan.units().size()) {}

// Index of this use in the rest of the list. Returns the list's size if it is not there, or if it comes after uses that
// may still happen.
size_t Engine::Pass::find(Act act, int u) const {
  for (size_t i = next_; i < actions_.size(); ++i) {
    const Action& a = actions_[i];
    if (a.act == act && a.unit == u) return i;
    if (a.act == Act::kStep || (act == Act::kForward && a.act == Act::kBackward)) break;
    const Use& other = uses_[static_cast<size_t>(a.unit)];
    if (a.act == Act::kBackward && other.forward_seen && !other.backward_seen) break;
  }
  return actions_.size();
}

Status Engine::Pass::begin(Act act, int u) {
  RONDO_TRY(impl_.check_unit(u));
  if (act != Act::kForward && act != Act::kBackward) return impl_.misuse("only kForward and kBackward are begun");
  const bool forward = act == Act::kForward;
  if (!forward && kind_ == PassKind::kForwardOnly)
    return impl_.misuse("backward of {} in a forward-only pass", impl_.name(u));
  if (forward && !backward_) RONDO_TRY(check_enclosed(u));
  Use& mine = use(u);
  const bool again = mine.used();
  if (!forward && mine.backward_seen)
    return mine.in_backward ? Status() : impl_.misuse("backward of {} runs twice in a pass", impl_.name(u));
  if (!again || !forward) RONDO_TRY(come_to(act, u));
  if (forward && !backward_) seen_.forward.push_back(u);
  if (forward) ++mine.forward, mine.forward_seen = true;
  else backward_ = mine.in_backward = mine.backward_seen = true;
  if (!again || !forward) RONDO_TRY(fetch(u));
  if (!forward) RONDO_TRY(take_grads(u));
  if (!again || !forward) (forward ? mine.forward_since : mine.backward_since) = trace_clock();
  return {};
}

// Runs the list up to this use, before this use takes a buffer: an earlier action may need it for another unit. A
// repeated forward in backward comes before the unit's backward, so it runs the list up to that point.
Status Engine::Pass::come_to(Act act, int u) {
  const bool again_in_backward = act == Act::kForward && backward_;
  const size_t at = find(again_in_backward ? Act::kBackward : act, u);
  if (at < actions_.size()) {
    RONDO_TRY(advance(at));
    next_ = again_in_backward ? at : at + 1;
  }
  use(u).off_list = at == actions_.size();
  return {};
}

// Refuses overlapping uses, because the postponed gathers would depend on the units that a rank has in use.
Status Engine::Pass::check_enclosed(int u) const {
  if (impl_.plan.options().strategy != Strategy::kShardAll) return {};
  for (int v = 0; v < static_cast<int>(uses_.size()); ++v)
    if (v != u && uses_[static_cast<size_t>(v)].forward > 0 && !impl_.unit(v).resident)
      return impl_.misuse(
          "{} is used within {}, which releases its parameters earlier: set Unit::encloses of the outer one",
          impl_.name(u), impl_.name(v));
  return {};
}

// If units are used out of order, nobody may have waited for the last reduction from the buffer.
Status Engine::Pass::take_grads(int u) {
  if (impl_.unit(u).grad_buffer < 0) return {};
  const int writer = impl_.writer_of(u);
  if (writer >= 0 && impl_.state(writer).reducing) RONDO_TRY(engine_.wait_reduce(writer));
  return engine_.begin_grads(u);
}

Status Engine::Pass::end(Act act, int u) {
  RONDO_TRY(impl_.check_unit(u));
  if (act == Act::kForward) {
    if (use(u).forward == 0) return impl_.misuse("forward of {} ends but has not begun", impl_.name(u));
    if (--use(u).forward > 0 || use(u).in_backward) return {};
    RONDO_TRY(end_forward(u));
  } else {
    if (!use(u).in_backward) return impl_.misuse("backward of {} ends but has not begun", impl_.name(u));
    RONDO_TRY(end_backward(u));
  }
  return advance_eagerly();
}

// If units are used out of order, the parameters stay until another unit needs the buffer or the pass ends.
Status Engine::Pass::end_forward(int u) {
  Use& mine = use(u);
  impl_.span("compute", "forward ", u, mine.forward_since);
  if (std::exchange(mine.release_due, false)) return let_go(u);
  return {};
}

Status Engine::Pass::end_backward(int u) {
  Use& mine = use(u);
  mine.in_backward = false;
  impl_.span("compute", "backward ", u, mine.backward_since);
  seen_.backward.push_back(u);
  // An enclosing unit begins backward before its inner units. The list may have reached its position by now.
  if (const size_t at = mine.off_list ? find(Act::kBackward, u) : actions_.size(); at < actions_.size()) {
    mine.off_list = false;
    RONDO_TRY(advance(at));
    next_ = at + 1;
  }
  const UnitPlan& p = impl_.unit(u);
  if (std::exchange(mine.release_due, false) || (mine.off_list && impl_.releases())) RONDO_TRY(let_go(u));
  const bool reduces = p.grad_buffer >= 0 && !p.keeps_grads;
  if (std::exchange(mine.reduce_due, false) || (mine.off_list && reduces)) RONDO_TRY(engine_.reduce(u));
  return {};
}

Status Engine::Pass::advance(size_t to) {
  for (; next_ < to; ++next_) RONDO_TRY(perform(actions_[next_]));
  return {};
}

// Runs the next actions that only issue or release.
Status Engine::Pass::advance_eagerly() {
  for (; next_ < actions_.size(); ++next_) {
    const Act act = actions_[next_].act;
    if (act != Act::kGather && act != Act::kRelease && act != Act::kReduce) break;
    RONDO_TRY(perform(actions_[next_]));
  }
  return {};
}

// Runs an action of the list, unless it was already done out of order.
Status Engine::Pass::perform(const Action& a) {
  const int u = a.unit;
  Use& mine = use(u);
  UnitState& state = impl_.state(u);
  const bool waits_for_list = a.act == Act::kReduce && impl_.unit(u).keeps_grads;
  if (mine.off_list && mine.backward_seen && a.act != Act::kWaitReduce && !waits_for_list) return {};
  switch (a.act) {
    case Act::kGather: {
      const int held = impl_.holder_of(u);
      if (state.where != Where::kAway || (held >= 0 && held != u)) return {};  // the wait will gather it
      return engine_.gather(u);
    }
    case Act::kWaitGather: return fetch(u);
    case Act::kForward: return {};
    case Act::kBackward: return take_grads(u);  // for a skipped unit this makes zeros
    case Act::kRelease:
      if (mine.used()) mine.release_due = true;
      else RONDO_TRY(let_go(u));
      return {};
    case Act::kReduce:
      if (mine.in_backward) mine.reduce_due = true;
      else RONDO_TRY(engine_.reduce(u));
      return {};
    case Act::kWaitReduce: return state.reducing ? engine_.wait_reduce(u) : Status();
    case Act::kStep: return engine_.step(u);
  }
  return {};
}

// Gathers a unit now if needed. A unit that was gathered ahead and is not in use gives up its buffer.
Status Engine::Pass::fetch(int u) {
  UnitState& state = impl_.state(u);
  if (state.where == Where::kAway) {
    const int held = impl_.holder_of(u);
    if (held >= 0 && held != u && !use(held).used()) RONDO_TRY(let_go(held));
    RONDO_TRY(engine_.gather(u));
  }
  return state.where == Where::kComing ? engine_.wait_gather(u) : Status();
}

Status Engine::Pass::let_go(int u) {
  UnitState& state = impl_.state(u);
  if (state.where == Where::kComing) RONDO_TRY(engine_.wait_gather(u));
  return state.where == Where::kHere ? engine_.release(u) : Status();
}

Status Engine::Pass::finish() {
  stage_ = Stage::kFailed;
  for (int u = static_cast<int>(uses_.size()) - 1; u >= 0; --u) {
    if (use(u).forward > 0) return impl_.misuse("the pass ends during forward of {}", impl_.name(u));
    if (use(u).in_backward) RONDO_TRY(end_backward(u));  // some of its gradients never came
  }
  size_t end = next_;
  while (end < actions_.size() && actions_[end].act != Act::kStep) ++end;
  RONDO_TRY(advance(end));
  for (int u = 0; u < static_cast<int>(uses_.size()); ++u)  // reductions out of order are not in the list
    if (impl_.state(u).reducing) RONDO_TRY(engine_.wait_reduce(u));
  for (int u = 0; kind_ == PassKind::kTrain && u < static_cast<int>(uses_.size()); ++u)
    if (impl_.state(u).writing)
      return impl_.misuse(
          "the backward of {} began after its gradients were reduced, without the forward that defines the order: run "
          "forward in the pass, or call adopt_order",
          impl_.name(u));
  // Parameters that stay gathered would be stale after the next step.
  for (int u = 0; impl_.releases() && u < static_cast<int>(uses_.size()); ++u) RONDO_TRY(let_go(u));
  stage_ = Stage::kEnded;
  return {};
}

Status Engine::Pass::step(const std::function<Status()>& instead) {
  if (kind_ != PassKind::kTrain) return impl_.misuse("the optimizer steps only after a pass of kind kTrain");
  if (impl_.options.clip_norm > 0) RONDO_TRY(engine_.clip_grad_norm(impl_.options.clip_norm));
  if (instead) {
    RONDO_TRY(impl_.scale_grads());
    RONDO_TRY(instead());
    RONDO_TRY(impl_.mark_changed());
    ++impl_.steps;
  }
  for (; next_ < actions_.size(); ++next_) {
    const auto [act, u] = actions_[next_];
    if (act == Act::kGather) RONDO_TRY(engine_.gather(u));
    else if (act == Act::kWaitGather) RONDO_TRY(engine_.wait_gather(u));
    else if (act == Act::kStep && !instead) RONDO_TRY(engine_.step(u));
  }
  return engine_.finish_step();
}

}  // namespace rondo::fsdp
