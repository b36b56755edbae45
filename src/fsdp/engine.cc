#include "rondo/fsdp/engine.h"

#include <algorithm>
#include <chrono>

#include "fsdp/engine_impl.h"
#include "fsdp/pass.h"

namespace rondo::fsdp {
namespace {

uint64_t ns_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
const Plan& Engine::plan() const { return impl_->plan; }
const Log& Engine::log() const { return impl_->log; }
void Engine::clear_log() { impl_->log.clear(); }
uint64_t Engine::owned_bytes() const { return impl_->bytes; }

Expected<std::unique_ptr<Engine>> Engine::create(const Plan& plan, Communicator& comm, const EngineOptions& options) {
  auto impl = std::make_unique<Impl>(plan, comm, options);
  RONDO_TRY(impl->open());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

// With offload, copies to the device may still read the masters.
std::vector<Part> Engine::parts() {
  if (impl_->offloads()) (void)impl_->device.synchronize(Line::kCommunication);
  return impl_->parts();
}
Device& Engine::device() const { return impl_->device; }
Device& Engine::owner() const { return impl_->owner; }
Communicator& Engine::communicator() const { return impl_->comm; }
const OptimizerConfig& Engine::optimizer() const { return impl_->options.optimizer; }
Status Engine::set_learning_rate(float lr) {
  OptimizerConfig changed = impl_->options.optimizer;
  changed.lr = lr;
  RONDO_TRY(check_optimizer(changed));
  impl_->options.optimizer = changed;
  return {};
}
int64_t Engine::optimizer_steps() const { return impl_->steps; }
void Engine::set_optimizer_steps(int64_t steps) { impl_->steps = steps; }
Stats Engine::stats() const { return impl_->stats; }
void Engine::reset_stats() { impl_->stats = {}; }
bool Engine::is_here(int u) const { return impl_->check_unit(u).ok() && impl_->state(u).where == Where::kHere; }

Status Engine::init(const Fill& fill) {
  const bool direct = impl_->owner.memory() == rondo::Memory::kHost;
  std::vector<std::byte> copy;
  for (const Part& p : parts()) {
    if (!direct) copy.resize(p.num_elems * dtype_bytes(p.dtype));
    fill(impl_->unit(p.unit).tensors[p.tensor], p.first, p.num_elems, direct ? p.master : copy.data());
    if (!direct) RONDO_TRY(impl_->owner.write(p.master, copy.data(), copy.size()));
  }
  return masters_changed();
}

Status Engine::masters_changed() {
  RONDO_TRY(impl_->mark_changed());
  if (impl_->releases()) return {};
  const int num_units = static_cast<int>(impl_->states.size());
  for (int u = 0; u < num_units; ++u) RONDO_TRY(gather(u));
  for (int u = 0; u < num_units; ++u) RONDO_TRY(wait_gather(u));
  return {};
}

Status Engine::read_owned(const Read& read) const {
  const bool direct = impl_->owner.memory() == rondo::Memory::kHost;
  std::vector<std::byte> copy;
  for (const Part& p : impl_->parts()) {
    if (!direct) {
      copy.resize(p.num_elems * dtype_bytes(p.dtype));
      RONDO_TRY(impl_->owner.read(copy.data(), p.master, copy.size()));
    }
    read(impl_->unit(p.unit).tensors[p.tensor], p.first, p.num_elems, direct ? p.master : copy.data());
  }
  return impl_->settled();
}

Status Engine::settled() { return impl_->settled(); }

void* Engine::data(int u, size_t tensor) {
  if (!is_here(u) || tensor >= impl_->unit(u).placed.size()) return nullptr;
  const Placed& at = impl_->unit(u).placed[tensor];
  const Segment& s = impl_->unit(u).segments[at.segment];
  return impl_->buffer(u) + s.data_offset_bytes + at.offset_elems * dtype_bytes(s.param);
}

void* Engine::grad(int u, size_t tensor) {
  if (!impl_->check_unit(u).ok() || !impl_->state(u).writing || tensor >= impl_->unit(u).placed.size()) return nullptr;
  const Placed& at = impl_->unit(u).placed[tensor];
  const Segment& s = impl_->unit(u).segments[at.segment];
  if (!s.trainable) return nullptr;
  return impl_->grad_buffer(u) + s.grad_offset_bytes + at.offset_elems * dtype_bytes(s.param);
}

Status Engine::gather(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  int& held = impl_->holder_of(u);
  if (held >= 0 && held != u)
    return impl_->misuse("{} cannot be gathered: {} has its buffer and was not released", impl_->name(u),
                         impl_->name(held));
  if (s.where == Where::kComing) return {};
  ++impl_->stats.gathers;
  if (held < 0) impl_->held_since[static_cast<size_t>(impl_->unit(u).data_buffer)] = trace_clock();
  held = u;
  Device& device = impl_->device;
  // If no optimizer step comes between its use and this gather, the event was not recorded since the change.
  if (s.where == Where::kHere && (impl_->offloads() || impl_->unit(u).grad_buffer < 0))
    RONDO_TRY(device.record(s.changed.get(), Line::kCompute));
  s.where = Where::kComing;
  RONDO_TRY(device.wait(Line::kCommunication, impl_->released[static_cast<size_t>(impl_->unit(u).data_buffer)].get()));
  RONDO_TRY(device.wait(Line::kCommunication, s.changed.get()));
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) RONDO_TRY(impl_->gather_segment(u, i));
  return device.record(s.gathered.get(), Line::kCommunication);
}

Status Engine::wait_gather(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (s.where == Where::kAway) return impl_->misuse("{} is waited for but was not gathered", impl_->name(u));
  const uint64_t begin = trace_clock();
  const auto since = std::chrono::steady_clock::now();
  for (Work& w : s.gathers) RONDO_TRY(w.wait());
  RONDO_TRY(impl_->line_error());
  RONDO_TRY(impl_->device.wait(Line::kCompute, s.gathered.get()));
  impl_->stats.gather_wait_ns += ns_since(since);
  impl_->span("waits", "gather ", u, begin);
  s.gathers.clear();
  s.where = Where::kHere;
  return {};
}

Status Engine::release(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (s.where != Where::kHere) return impl_->misuse("{} is released but not gathered", impl_->name(u));
  s.where = Where::kAway;
  impl_->holder_of(u) = -1;
  const int buffer = impl_->unit(u).data_buffer;
  RONDO_TRY(impl_->device.record(impl_->released[static_cast<size_t>(buffer)].get(), Line::kCompute));
  impl_->span(fmt::format("buffer {}", buffer), "", u, impl_->held_since[static_cast<size_t>(buffer)]);
  return {};
}

Status Engine::begin_grads(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  int& has = impl_->writer_of(u);
  if (s.reducing || (has >= 0 && has != u))
    return impl_->misuse(
        "gradients of {} cannot be written: those of {} are in the buffer, and their reduction was not waited for",
        impl_->name(u), impl_->name(has >= 0 ? has : u));
  if (s.has_sum && !s.whole_sum && impl_->sums_where_computed(u))
    return impl_->misuse(
        "gradients of {} cannot be written a second time in a step: the reduced sums are in the same buffer; reduce "
        "only in the last micro-batch (Plan::step(false) for the others)",
        impl_->name(u));
  if (has < 0) impl_->written_since[static_cast<size_t>(impl_->unit(u).grad_buffer)] = trace_clock();
  has = u;
  s.writing = true;
  if (!s.whole_sum) RONDO_TRY(impl_->device.zero(impl_->grad_buffer(u), impl_->unit(u).grad_bytes));
  s.whole_sum = impl_->unit(u).keeps_grads;
  return {};
}

Status Engine::reduce(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  if (!s.writing) return impl_->misuse("{} is reduced but has no gradients: call begin_grads first", impl_->name(u));
  s.writing = false;
  s.whole_sum = false;
  s.reducing = true;
  ++impl_->stats.reductions;
  Device& device = impl_->device;
  RONDO_TRY(device.record(impl_->handed_over.get(), Line::kCompute));
  RONDO_TRY(device.wait(Line::kCommunication, impl_->handed_over.get()));
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) RONDO_TRY(impl_->reduce_segment(u, i));
  return device.record(s.reduced.get(), Line::kCommunication);
}

Status Engine::wait_reduce(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  if (!s.reducing) return impl_->misuse("the reduction of {} is waited for but is not under way", impl_->name(u));
  const uint64_t begin = trace_clock();
  const auto since = std::chrono::steady_clock::now();
  for (Work& w : s.reductions) RONDO_TRY(w.wait());
  if (!impl_->streams() && impl_->sharded() && impl_->replicated()) RONDO_TRY(impl_->reduce_across(u));
  RONDO_TRY(impl_->line_error());
  RONDO_TRY(impl_->device.wait(Line::kCompute, s.reduced.get()));
  if (impl_->offloads()) RONDO_TRY(impl_->device.await(s.reduced.get()));
  impl_->stats.reduce_wait_ns += ns_since(since);
  impl_->span("waits", "reduction ", u, begin);
  s.reductions.clear();
  if (s.has_sum) RONDO_TRY(impl_->add_sum(u));
  s.has_sum = true;
  s.reducing = false;
  impl_->writer_of(u) = -1;
  const int grads = impl_->unit(u).grad_buffer;
  impl_->span(fmt::format("gradient buffer {}", grads), "", u, impl_->written_since[static_cast<size_t>(grads)]);
  return {};
}

Status Engine::step(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (impl_->unit(u).grad_buffer < 0) return {};
  if (s.reducing || s.writing) return impl_->misuse("{} is changed before its gradients are reduced", impl_->name(u));
  if (!s.has_sum)
    return impl_->misuse("{} is changed but has no gradients of this step: reduce them first", impl_->name(u));
  if (!impl_->in_step) ++impl_->steps;
  impl_->in_step = true;
  const uint64_t begin = trace_clock();
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) {
    const Segment& seg = impl_->unit(u).segments[i];
    if (!seg.trainable) continue;
    Owned& o = s.owned[i];
    StepCall call{impl_->options.optimizer,
                  impl_->steps,
                  impl_->scale,
                  seg.counts[impl_->part],
                  reinterpret_cast<float*>(o.master),
                  reinterpret_cast<const float*>(o.grad),
                  {}};
    for (size_t k = 0; k < o.states.size(); ++k) call.states[k] = reinterpret_cast<float*>(o.states[k].get());
    RONDO_TRY(impl_->owner.step(call));
  }
  // With offload the change is complete at this point.
  if (!impl_->offloads()) RONDO_TRY(impl_->device.record(s.changed.get(), Line::kCompute));
  impl_->span("compute", "step ", u, begin);
  return {};
}

Status Engine::finish_step() {
  for (size_t u = 0; u < impl_->states.size(); ++u) {
    UnitState& s = impl_->states[u];
    if (s.reducing) return impl_->misuse("the step ends while {} is being reduced", impl_->name(static_cast<int>(u)));
    s.writing = s.has_sum = s.whole_sum = false;
  }
  std::ranges::fill(impl_->writer, -1);
  impl_->in_step = false;
  impl_->scale = 1;
  impl_->log_ends = true;
  return {};
}

Status Engine::run(const std::vector<Action>& actions, const Compute& compute) {
  RONDO_TRY(impl_->check_idle());
  impl_->run_failed = true;
  RONDO_TRY(run_all(actions, compute));
  impl_->run_failed = false;
  return {};
}

Status Engine::run_all(const std::vector<Action>& actions, const Compute& compute) {
  bool stepped = false;
  auto computed = [&](Act act, int u) -> Status {
    const uint64_t begin = trace_clock();
    RONDO_TRY(compute(act, u));
    impl_->span("compute", act == Act::kForward ? "forward " : "backward ", u, begin);
    return {};
  };
  for (const auto& [act, u] : actions) {
    switch (act) {
      case Act::kGather: RONDO_TRY(gather(u)); break;
      case Act::kWaitGather: RONDO_TRY(wait_gather(u)); break;
      case Act::kForward: RONDO_TRY(computed(act, u)); break;
      case Act::kRelease: RONDO_TRY(release(u)); break;
      case Act::kBackward:
        RONDO_TRY(begin_grads(u));
        RONDO_TRY(computed(act, u));
        break;
      case Act::kReduce: RONDO_TRY(reduce(u)); break;
      case Act::kWaitReduce: RONDO_TRY(wait_reduce(u)); break;
      case Act::kStep:
        if (!stepped && impl_->options.clip_norm > 0) RONDO_TRY(clip_grad_norm(impl_->options.clip_norm));
        stepped = true;
        RONDO_TRY(step(u));
        break;
    }
  }
  return stepped ? finish_step() : Status();
}

Status Engine::begin_pass(PassKind kind) {
  RONDO_TRY(impl_->check_idle());
  if (impl_->pass != nullptr && impl_->pass->stage() != Pass::Stage::kEnded)
    return impl_->misuse("a pass begins but the previous one has not ended: call end_pass or cancel_pass");
  if (impl_->pass != nullptr && impl_->pass->kind() == PassKind::kTrain)
    return impl_->misuse(
        "a pass begins but the optimizer has not used the gradients of the previous one: call step, or cancel_pass to "
        "discard them; use kind kAccumulate for all micro-batches except the last");
  impl_->pass = std::make_unique<Pass>(*this, *impl_, kind);
  return {};
}

Status Engine::in_pass() const {
  if (impl_->pass != nullptr && impl_->pass->stage() == Pass::Stage::kOpen) return {};
  return impl_->misuse("no pass is under way: call begin_pass first");
}

Status Engine::begin(Act act, int u) {
  RONDO_TRY(in_pass());
  return impl_->pass->begin(act, u);
}
Status Engine::end(Act act, int u) {
  RONDO_TRY(in_pass());
  return impl_->pass->end(act, u);
}
Status Engine::end_pass() {
  RONDO_TRY(in_pass());
  return impl_->pass->finish();
}
Status Engine::step(const std::function<Status()>& instead) {
  if (impl_->pass == nullptr || impl_->pass->stage() != Pass::Stage::kEnded)
    return impl_->misuse("the optimizer steps after a pass: call begin_pass .. end_pass first");
  RONDO_TRY(impl_->pass->step(instead));
  impl_->pass.reset();
  return {};
}

Status Engine::cancel_pass() {
  impl_->pass.reset();
  impl_->run_failed = false;
  Status first;
  auto keep = [&](const Status& s) {
    if (first.ok()) first = s;
  };
  for (int u = 0; u < static_cast<int>(impl_->states.size()); ++u) {
    UnitState& s = impl_->state(u);
    if (s.where == Where::kComing) keep(wait_gather(u));
    if (s.reducing) keep(wait_reduce(u));
    if (impl_->releases() && s.where == Where::kHere) keep(release(u));
  }
  keep(finish_step());
  return first;
}

// All ranks adopt rank 0's order. Ranks with different lists would wait for each other.
Status Engine::adopt_order() {
  if (impl_->pass == nullptr || impl_->pass->stage() != Pass::Stage::kEnded)
    return impl_->misuse("an order is adopted after a pass: call begin_pass .. end_pass first");
  std::vector<int> sizes, units;
  const Order& seen = impl_->pass->seen();
  sizes = {static_cast<int>(seen.forward.size()), static_cast<int>(seen.backward.size())};
  units.insert(units.end(), seen.forward.begin(), seen.forward.end());
  units.insert(units.end(), seen.backward.begin(), seen.backward.end());
  RONDO_TRY(impl_->calls.broadcast(sizes.data(), sizes.size(), Dtype::kInt32, 0));
  constexpr int kMostUnits = 1 << 24;  // limit on the units that a pass visits
  if (sizes[0] < 0 || sizes[1] < 0 || sizes[0] > kMostUnits || sizes[1] > kMostUnits)
    return impl_->misuse("rank 0's order has {} and {} units, at most {} can be adopted", sizes[0], sizes[1],
                         kMostUnits);
  units.resize(static_cast<size_t>(sizes[0]) + static_cast<size_t>(sizes[1]));
  RONDO_TRY(impl_->calls.broadcast(units.data(), units.size(), Dtype::kInt32, 0));
  impl_->order.forward.assign(units.begin(), units.begin() + sizes[0]);
  impl_->order.backward.assign(units.begin() + sizes[0], units.end());
  return {};
}
const Order& Engine::order() const { return impl_->order; }

}  // namespace rondo::fsdp
