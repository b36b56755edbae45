#include "core.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace rondo::torch::internal {
namespace {

bool in_backward() { return ::torch::autograd::get_current_graph_task_id() != -1; }

[[noreturn]] void misuse(const std::string& why) { throw Error(Status(StatusCode::kInvalidArgument, why)); }

}  // namespace

void check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

int Core::enter(const void* key) {
  const bool is_pass = key == this;
  const auto found = all_.unit_of.find(key);
  if (!is_pass && found == all_.unit_of.end()) return -1;
  const int unit = is_pass ? all_.root : found->second;
  if (is_pass) open_pass();
  else if (phase_ == Phase::kIdle)
    misuse("unit '" + name(unit) + "' is called outside of a pass: call the sharded model, or it within Training::run");
  int i = phase_ == Phase::kBackward ? repeated_call(unit) : -1;
  if (i < 0) {
    i = static_cast<int>(calls_.size());
    calls_.push_back({.unit = unit, .begin = ++clock_, .is_pass = is_pass});
    if (phase_ == Phase::kBackward) call(i).end = clock_;
  }
  if (phase_ == Phase::kBackward) end_calls_after(call(i).end, unit);
  if (unit < 0) return i;
  const Status begun = engine_->begin(fsdp::Act::kForward, unit);
  if (!begun.ok()) {
    call(i).state = State::kDone;
    if (is_pass) give_up();
    throw Error(begun);
  }
  bind(unit);
  return i;
}

// Two forwards before one backward are one pass; a forward whose results are gone has no backward.
void Core::open_pass() {
  if (in_backward()) misuse("the model is called within its own backward: only units can be repeated there");
  if (depth_ == 0 && phase_ != Phase::kIdle) {
    const bool alive = std::any_of(graphs_.begin(), graphs_.end(), [](const auto& g) { return !g.expired(); });
    if (phase_ == Phase::kBackward || !alive) give_up();
  }
  ++depth_;
  if (phase_ != Phase::kIdle) return;
  kind_ = !::at::GradMode::is_enabled() ? fsdp::PassKind::kForwardOnly
          : accumulates                 ? fsdp::PassKind::kAccumulate
                                        : fsdp::PassKind::kTrain;
  const Status begun = engine_->begin_pass(kind_);
  if (!begun.ok()) --depth_;
  check(begun);
  ++pass_;
  phase_ = Phase::kForward;
  clock_ = 0;
  calls_.clear();
  graphs_.clear();
}

// The last one without a graph that backward has not come to.
int Core::repeated_call(int unit) const {
  for (size_t i = calls_.size(); i > 0; --i)
    if (calls_[i - 1].unit == unit && calls_[i - 1].state == State::kNoGraph) return static_cast<int>(i) - 1;
  return -1;
}

void Core::leave(int i, const std::vector<::torch::Tensor>& outputs) {
  if (i < 0) return;
  const bool forward = phase_ == Phase::kForward, records = ::at::GradMode::is_enabled();
  const bool trains = kind_ != fsdp::PassKind::kForwardOnly;
  if (const int u = call(i).unit; u >= 0 && !always_here_)
    for (const auto& t : outputs)
      if (find(t).get() == this)
        misuse("unit '" + name(u) +
               "' returns a parameter, or a view of one, whose memory is another unit's then: "
               "return a clone() of it");
  if (forward) call(i).end = ++clock_;
  call(i).state = !trains ? State::kDone : records ? State::kAwaited : forward ? State::kNoGraph : State::kDone;
  const int unit = call(i).unit;
  if (unit >= 0) {
    unbind(unit);
    check(engine_->end(fsdp::Act::kForward, unit));
  }
  if (trains && records) await_gradients(i, outputs);
  if (!call(i).is_pass) return;
  --depth_;
  for (const auto& t : outputs)
    if (trains && t.defined() && t.grad_fn() != nullptr) graphs_.emplace_back(t.grad_fn());
  if (depth_ == 0 && !trains) finish_pass();
}

void Core::await_gradients(int i, const std::vector<::torch::Tensor>& outputs) {
  bool any = false;
  for (const auto& t : outputs) {
    if (!t.defined() || !t.requires_grad()) continue;
    any = true;
    t.register_hook([self = weak_from_this(), pass = pass_, i](const ::torch::Tensor&) {
      const auto core = self.lock();
      if (core == nullptr) misuse("backward of a model whose Training is gone: it must outlive backward");
      core->on_gradient(pass, i);
    });
  }
  if (!any) call(i).state = State::kDone;  // frozen, and so is what it was given
}

void Core::fail(int i) noexcept {
  if (i < 0 || phase_ == Phase::kIdle) return;
  Call& c = call(i);
  c.state = State::kDone;
  if (c.is_pass && --depth_ == 0) return give_up();
  if (c.unit < 0) return;
  unbind(c.unit);
  (void)engine_->end(fsdp::Act::kForward, c.unit);  // the exception under way tells more
}

void Core::on_gradient(uint64_t pass, int i) {
  if (pass != pass_ || phase_ == Phase::kIdle)
    misuse("backward of a pass that has ended: a forward has one backward, and it comes before the next pass");
  if (phase_ == Phase::kForward) {
    phase_ = Phase::kBackward;
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this()] { self->finish_pass(); });
  }
  if (call(i).state != State::kAwaited) return;  // another of its outputs
  end_calls_after(call(i).end, call(i).unit);
  pass_over_calls_after(i);
  begin_backward(i);
  // The same unit's later call: only now, so that its parameters stay.
  for (const int j : std::vector<int>(in_backward_))
    if (j != i && call(j).unit == call(i).unit && call(j).begin > call(i).end) end_backward(j);
}

void Core::begin_backward(int i) {
  Call& c = call(i);
  c.state = State::kInBackward;
  in_backward_.push_back(i);
  if (c.unit < 0) return;
  // One call of a unit takes all of its gradients: the one that backward leaves last, or is in already.
  c.data_only = std::any_of(calls_.begin(), calls_.begin() + i,
                            [&](const Call& e) {
                              return e.unit == c.unit && (e.state == State::kAwaited || e.state == State::kNoGraph);
                            }) ||
                std::any_of(in_backward_.begin(), in_backward_.end(),
                            [&](int j) { return j != i && call(j).unit == c.unit && !call(j).data_only; });
  check(engine_->begin(c.data_only ? fsdp::Act::kForward : fsdp::Act::kBackward, c.unit));
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
  check(engine_->end(c.data_only ? fsdp::Act::kForward : fsdp::Act::kBackward, c.unit));
}

void Core::end_calls_after(int64_t time, int but_of_unit) {
  const std::vector<int> open = in_backward_;
  for (auto i = open.rbegin(); i != open.rend(); ++i)
    if (call(*i).begin > time && call(*i).unit != but_of_unit) end_backward(*i);
}

// autograd goes backwards in time: later calls that have had no gradient get none. They contribute zeros here, where
// other ranks contribute what they have.
void Core::pass_over_calls_after(int i) {
  for (int j = static_cast<int>(calls_.size()) - 1; j > i; --j) {
    const Call& c = call(j);
    if (c.state != State::kAwaited || c.unit < 0 || c.unit == call(i).unit || c.begin < call(i).end) continue;
    begin_backward(j);
    end_backward(j);
  }
}

// Gradients that came while no call of their unit took them: an earlier call was awaited and had no backward.
void Core::take_strays() {
  for (size_t u = 0; u < ranges_.size(); ++u) {
    const auto [first, last] = ranges_[u];
    const int unit = static_cast<int>(u);
    bool any = false;
    for (size_t e = first; e < last; ++e) any = any || all_.entries[e].param.grad().defined();
    if (!any) continue;
    check(engine_->begin(fsdp::Act::kBackward, unit));
    attach_grads(unit);
    detach_grads(unit);
    check(engine_->end(fsdp::Act::kBackward, unit));
  }
}

void Core::finish_pass() {
  end_calls_after(-1, -2);
  take_strays();
  const Status ended = engine_->end_pass();
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
  (void)engine_->cancel_pass();  // what it could say, the next pass will
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

// autograd adds to what stands there.
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

// Where a graph of gradients is asked for (create_graph), autograd puts a new tensor there.
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
