#include "core.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace rondo::torch::internal {
namespace {

bool in_backward() { return ::torch::autograd::get_current_graph_task_id() != -1; }

// Added to a parameter's version while its buffer does not hold it.
constexpr uint32_t kElsewhere = 1u << 30;
constexpr uint64_t kNone = ~uint64_t{0};  // no autograd node

}  // namespace

void check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

void Core::misuse(const std::string& why) const {
  const std::string rank = "rank " + std::to_string(engine_->communicator().rank()) + ": ";
  throw Error(Status(StatusCode::kInvalidArgument, rank + why));
}

int Core::enter(const void* key) {
  const bool is_pass = key == this;
  const auto found = all_.unit_of.find(key);
  if (!is_pass && found == all_.unit_of.end()) return -1;
  const int unit = is_pass ? all_.root : found->second;
  if (is_pass) open_pass();
  else if (phase_ == Phase::kIdle)
    misuse("unit '" + name(unit) +
           "' is called outside of a pass, or after an error that ended the pass: call the sharded model, or the unit "
           "within Training::run, and catch rondo::torch::Error around that");
  int i = phase_ == Phase::kBackward ? repeated_call(unit) : -1;
  if (i < 0) {
    i = static_cast<int>(calls_.size());
    calls_.push_back({.unit = unit, .begin = ++clock_, .is_pass = is_pass});
    if (phase_ == Phase::kBackward) call(i).end = clock_;
  }
  if (phase_ == Phase::kBackward) settle_calls_after(i, call(i).first_node);
  call(i).first_node = ::at::sequence_number::peek();
  if (unit < 0) return i;
  const Status begun = begin_use(fsdp::Act::kForward, unit);
  if (!begun.ok()) give_up();
  check(begun);
  bind(unit);
  return i;
}

// Two forwards before one backward are one pass. A forward whose results are gone has no backward.
void Core::open_pass() {
  if (in_backward()) misuse("the model is called within its own backward: only units can be recomputed there");
  if (depth_ == 0 && phase_ != Phase::kIdle) {
    const bool alive = std::any_of(graphs_.begin(), graphs_.end(), [](const auto& g) { return !g.expired(); });
    if (phase_ == Phase::kBackward || !alive) give_up();
  }
  if (phase_ != Phase::kIdle) {
    ++depth_;
    return;
  }
  if (::at::GradMode::is_enabled()) check_frozen();
  kind_ = !::at::GradMode::is_enabled() ? fsdp::PassKind::kForwardOnly
          : accumulates                 ? fsdp::PassKind::kAccumulate
                                        : fsdp::PassKind::kTrain;
  check(engine_->begin_pass(kind_));
  ++depth_;
  ++pass_;
  phase_ = Phase::kForward;
  clock_ = 0;
  calls_.clear();
  graphs_.clear();
}

// The plan has no gradients for parameters that were frozen.
void Core::check_frozen() const {
  for (const Entry& e : all_.entries) {
    const fsdp::UnitPlan& unit = engine_->plan().units()[static_cast<size_t>(e.unit)];
    if (e.param.requires_grad() && !unit.segments[unit.placed[e.tensor].segment].trainable)
      misuse("parameter '" + e.path + "' of unit '" + name(e.unit) +
             "' was frozen when it was sharded but requires gradients now: call requires_grad_(true) before "
             "fully_shard, or requires_grad_(false) again");
  }
}

// Finds the call that a node repeats now: the first call without a graph that was made after the node.
int Core::repeated_call(int unit) const {
  const auto node = ::torch::autograd::get_current_node();
  for (size_t i = 0; node != nullptr && i < calls_.size(); ++i)
    if (calls_[i].unit == unit && calls_[i].state == State::kNoGraph && calls_[i].first_node > node->sequence_nr())
      return static_cast<int>(i);
  return -1;
}

void Core::leave(uint64_t pass, int i, const std::vector<::torch::Tensor>& outputs) {
  if (i < 0) return;
  if (pass != pass_)
    misuse(
        "a call of a unit or of the model ends, but its pass has ended with an error: catch rondo::torch::Error around "
        "the call of the sharded model, not within the model");
  const bool forward = phase_ == Phase::kForward, records = ::at::GradMode::is_enabled();
  const bool trains = kind_ != fsdp::PassKind::kForwardOnly;
  if (const int u = call(i).unit; u >= 0 && !always_here_)
    for (const auto& t : outputs)
      if (find(t).get() == this)
        misuse("unit '" + name(u) +
               "' returns a parameter or a view of one, whose memory another unit will use: return a clone() of it");
  if (forward) call(i).end = ++clock_;
  call(i).state = !trains ? State::kDone : records ? State::kAwaited : forward ? State::kNoGraph : State::kDone;
  const int unit = call(i).unit;
  if (unit >= 0) {
    unbind(unit);
    check(end_use(fsdp::Act::kForward, unit));
  }
  if (trains && records) await_gradients(i, outputs);
  if (!call(i).is_pass) return;
  --depth_;
  for (const auto& t : outputs)
    if (trains && t.defined() && t.grad_fn() != nullptr) graphs_.emplace_back(t.grad_fn());
  if (depth_ == 0 && !trains) finish_pass();
}

// An in-place change before backward drops the hooks of a view, but keeps those of its base. Tensors from before the
// call do not lead to the unit's parameters, and their hooks would run in the next pass.
void Core::await_gradients(int i, const std::vector<::torch::Tensor>& outputs) {
  auto await = [&](const ::torch::Tensor& t) {
    if (!t.defined() || t.grad_fn() == nullptr) return;
    const auto& node = *t.grad_fn();  // numbered by thread
    if (node.thread_id() == ::at::RecordFunction::currentThreadId() && node.sequence_nr() < call(i).first_node) return;
    t.register_hook([self = weak_from_this(), pass = pass_, i](const ::torch::Tensor&) {
      const auto core = self.lock();
      if (core == nullptr)
        throw Error(Status(StatusCode::kInvalidArgument,
                           "backward of a model whose Training was destroyed: it must outlive backward"));
      core->on_gradient(pass, i);
    });
  };
  for (const auto& t : outputs) {
    await(t);
    if (t.defined() && t.is_view()) await(::torch::Tensor(t._base()));
  }
}

// If the model catches the exception and goes on, backward skips this call.
void Core::fail(uint64_t pass, int i) noexcept {
  if (i < 0 || pass != pass_ || phase_ == Phase::kIdle) return;
  Call& c = call(i);
  const bool awaited = phase_ == Phase::kForward && kind_ != fsdp::PassKind::kForwardOnly;
  c.state = !awaited ? State::kDone : ::at::GradMode::is_enabled() ? State::kAwaited : State::kNoGraph;
  if (awaited) c.end = ++clock_;
  if (c.is_pass && --depth_ == 0) return give_up();
  if (c.unit < 0) return;
  unbind(c.unit);
  (void)end_use(fsdp::Act::kForward, c.unit);  // the exception under way has the better message
}

void Core::on_gradient(uint64_t pass, int i) {
  if (pass != pass_ || phase_ == Phase::kIdle)
    misuse("backward of a pass that has ended: run one backward for each forward, before the next pass");
  if (phase_ == Phase::kForward) {
    phase_ = Phase::kBackward;
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->finish_pass(); });
  }
  if (call(i).state != State::kAwaited) return;  // another of its outputs came first
  settle_calls_after(i, kNone);
  begin_backward(i);
  // End a later call of the same unit only now, so that its parameters stay.
  for (const int j : std::vector<int>(in_backward_))
    if (j != i && call(j).unit == call(i).unit && call(j).begin > call(i).end) end_backward(j);
}

void Core::begin_backward(int i) {
  Call& c = call(i);
  c.state = State::kInBackward;
  in_backward_.push_back(i);
  if (c.unit < 0) return;
  c.data_only = !takes_gradients(i);
  check(begin_use(c.data_only ? fsdp::Act::kForward : fsdp::Act::kBackward, c.unit));
  bind(c.unit);
  if (!c.data_only) attach_grads(c.unit);
}

void Core::end_backward(int i) {
  Call& c = call(i);
  c.state = State::kDone;
  std::erase(in_backward_, i);
  if (c.unit < 0) return;
  if (!c.data_only) detach_grads(c.unit);
  unbind(c.unit);
  check(end_use(c.data_only ? fsdp::Act::kForward : fsdp::Act::kBackward, c.unit));
}

// One call of a unit takes all of its gradients: the last one in backward's order, or the one in backward now.
bool Core::takes_gradients(int i) const {
  const int unit = calls_[static_cast<size_t>(i)].unit;
  return std::none_of(calls_.begin(), calls_.begin() + i,
                      [&](const Call& e) {
                        return e.unit == unit && (e.state == State::kAwaited || e.state == State::kNoGraph);
                      }) &&
         std::none_of(in_backward_.begin(), in_backward_.end(), [&](int j) {
           const Call& c = calls_[static_cast<size_t>(j)];
           return j != i && c.unit == unit && !c.data_only;
         });
}

// autograd runs backwards in time, so later calls are over; end them last first. A call that got no gradient
// contributes zeros, because other ranks may have gradients for it. Two kinds of calls stay open, so that their
// parameters stay: the next later calls of the same unit, and calls without a graph that are still to be repeated
// together with this one.
void Core::settle_calls_after(int this_call, uint64_t repeated_node) {
  const int64_t time = this_call < 0 ? 0 : call(this_call).end;
  const int unit = this_call < 0 ? -2 : call(this_call).unit;
  auto passed_over = [&](const Call& c) {
    const bool repeats_are_over = c.first_node != repeated_node;
    return c.unit >= 0 && (c.state == State::kAwaited || (c.state == State::kNoGraph && repeats_are_over));
  };
  size_t first = 0;
  while (first < calls_.size() && calls_[first].begin <= time) ++first;
  for (; first < calls_.size(); ++first)
    if (const Call& c = calls_[first]; c.unit != unit && (passed_over(c) || c.state == State::kInBackward)) break;
  for (size_t j = calls_.size(); j > first; --j) {
    const int i = static_cast<int>(j) - 1;
    if (!passed_over(call(i)) && call(i).state != State::kInBackward) continue;
    if (call(i).state == State::kNoGraph && !takes_gradients(i)) call(i).state = State::kDone;
    if (passed_over(call(i))) begin_backward(i);
    if (call(i).state == State::kInBackward) end_backward(i);
  }
}

// Gradients can arrive while no call of their unit takes them: the backward of an earlier call never ran.
void Core::take_strays() {
  for (size_t u = 0; u < ranges_.size(); ++u) {
    const auto [first, last] = ranges_[u];
    const int unit = static_cast<int>(u);
    bool any = false;
    for (size_t e = first; e < last; ++e) any = any || all_.entries[e].param.grad().defined();
    if (!any) continue;
    const Status begun = begin_use(fsdp::Act::kBackward, unit);
    if (begun.code() == StatusCode::kInvalidArgument)
      misuse("gradients of unit '" + name(unit) +
             "' came after the end of its backward, through a tensor that its call did not return: return that tensor");
    check(begun);
    attach_grads(unit);
    detach_grads(unit);
    check(end_use(fsdp::Act::kBackward, unit));
  }
}

void Core::finish_pass() {
  settle_calls_after(-1, kNone);
  take_strays();
  const Status ended = engine_->end_pass();
  follow_buffers();
  if (!ended.ok()) give_up();
  phase_ = Phase::kIdle;
  check(ended);
}

void Core::give_up() noexcept {
  for (size_t u = 0; u < bound_.size(); ++u)
    if (bound_[u] > 0) bound_[u] = 1, unbind(static_cast<int>(u));
  for (Entry& e : all_.entries) e.param.mutable_grad().reset();
  in_backward_.clear();
  calls_.clear();
  graphs_.clear();
  depth_ = 0;
  phase_ = Phase::kIdle;
  ++pass_;
  (void)engine_->cancel_pass();  // the next pass reports the same error
  follow_buffers();
}

Status Core::begin_use(fsdp::Act act, int unit) {
  Status begun = engine_->begin(act, unit);
  follow_buffers();
  return begun;
}

Status Core::end_use(fsdp::Act act, int unit) {
  Status ended = engine_->end(act, unit);
  follow_buffers();
  return ended;
}

// Any call of the engine may give a buffer to another unit. O(units + parameters of the changed units).
void Core::follow_buffers() {
  for (size_t u = 0; u < here_.size(); ++u) {
    const bool here = engine_->is_here(static_cast<int>(u));
    if (here == here_[u]) continue;
    here_[u] = here;
    const auto [first, last] = ranges_[u];
    for (size_t i = first; i < last; ++i) {
      ::c10::VariableVersion version = all_.entries[i].param.unsafeGetTensorImpl()->version_counter();
      const uint32_t now = version.current_version();
      if (here != (now < kElsewhere)) version.set_version(here ? now - kElsewhere : now + kElsewhere);
    }
  }
}

// The parameters' values changed, so existing graphs become invalid.
void Core::bump_versions() {
  for (Entry& e : all_.entries) e.param.unsafeGetTensorImpl()->bump_version();
}

void Core::bind(int unit) {
  if (bound_[static_cast<size_t>(unit)]++ > 0 || always_here_) return;
  const auto [first, last] = entries_of(unit);
  for (size_t i = first; i < last; ++i) {
    Entry& e = all_.entries[i];
    if (!e.here.defined()) e.here = view(engine_->data(unit, e.tensor), e);
    e.param.unsafeGetTensorImpl()->shallow_copy_from(e.here.getIntrusivePtr());
  }
}

void Core::unbind(int unit) {
  if (--bound_[static_cast<size_t>(unit)] > 0 || always_here_) return;
  const auto [first, last] = entries_of(unit);
  for (size_t i = first; i < last; ++i) {
    Entry& e = all_.entries[i];
    e.param.unsafeGetTensorImpl()->shallow_copy_from(e.away.getIntrusivePtr());
  }
}

// autograd adds to the existing gradients.
void Core::attach_grads(int unit) {
  const ::at::NoGradGuard no_grad;
  const auto [first, last] = entries_of(unit);
  for (size_t i = first; i < last; ++i) {
    Entry& e = all_.entries[i];
    void* at = engine_->grad(unit, e.tensor);
    if (at == nullptr) continue;
    ::torch::Tensor grad = view(at, e);
    const ::torch::Tensor before = e.param.grad();
    if (before.defined() && before.const_data_ptr() != at) grad.add_(before);
    e.param.mutable_grad() = std::move(grad);
  }
}

// With create_graph autograd replaces the gradient by a new tensor.
void Core::detach_grads(int unit) {
  const ::at::NoGradGuard no_grad;
  const auto [first, last] = entries_of(unit);
  for (size_t i = first; i < last; ++i) {
    Entry& e = all_.entries[i];
    void* at = engine_->grad(unit, e.tensor);
    const ::torch::Tensor grad = e.param.grad();
    if (at != nullptr && grad.defined() && grad.numel() > 0 && grad.const_data_ptr() != at) view(at, e).copy_(grad);
    e.param.mutable_grad().reset();
  }
}

}  // namespace rondo::torch::internal
