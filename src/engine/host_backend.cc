#include "engine/host_backend.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace rondo {
namespace {

// Watches one queue. The waiting thread has its driver role.
class DriverWatch final : public WaitObserver {
 public:
  explicit DriverWatch(OperationQueue& queue) : queue_(queue) {}
  bool urgent() override { return queue_.transport().aborted_by().has_value() && queue_.check_abort(); }
  bool check_wait(uint64_t waited_ns) override {
    queue_.diagnose(waited_ns);
    return queue_.has_failed();
  }
  void rebalance() override { queue_.even_out(); }

 private:
  OperationQueue& queue_;
};

bool all_done(std::span<const std::shared_ptr<Operation>> batch) {
  return std::ranges::all_of(batch, [](const auto& op) { return op->done.load(std::memory_order_acquire); });
}

Status first_error(std::span<const std::shared_ptr<Operation>> batch) {
  for (const auto& op : batch)
    if (!op->status.ok()) return op->status;
  return {};
}

void fill(const Call& c, const Plan& plan, Operation& op) {
  op.program = plan.program.get();
  op.fallback = plan.fallback.get();
  op.in = static_cast<const std::byte*>(c.in);
  op.out = static_cast<std::byte*>(c.out);
  op.in_bytes = c.in_bytes;
  op.out_bytes = c.out_bytes;
  op.deadline_ns = c.deadline_ns;
  op.tag = c.tag;
  std::memcpy(op.premul, c.premul, sizeof(op.premul));
}

}  // namespace

void HostBackend::lock() {
  if (queue_.drive()) [[likely]]
    return;
  queue_.contend();
  for (uint32_t i = 0; !queue_.drive(); ++i)
    if (i < 100) cpu_pause();
    else sched_yield();
  queue_.stop_contending();
}

Status HostBackend::check(Call& c) const {
  if (c.premul_at != nullptr)
    return bad("premul", "is in device memory, but this communicator uses host memory");
  const auto refused = [this](std::string_view why) { return unsupported("rank {}: {}", rank_, why); };
  if (c.stream != nullptr) return refused("stream is set, but this is a communicator of host memory; leave it null");
  if (c.launch_event != nullptr)
    return refused(
        "launch_event is set, but a call on host memory launches no kernel; leave it null: a blocking call is complete "
        "when it (or its group) has returned");
  c.shape.min_blocks = c.shape.max_blocks = 0;
  return {};
}

Status HostBackend::submit(std::span<Call> calls) {
  Call& c = calls.front();
  if (calls.size() == 1 && c.work == nullptr) [[likely]] {
    const std::lock_guard driver(*this);
    if (queue_.idle()) [[likely]] {
      if (queue_.has_failed()) [[unlikely]]
        return queue_.failure();
      const auto planned = planner_.plan(c.shape);
      if (!planned.ok()) [[unlikely]]
        return not_started(c.shape, planned.status());
      blocking_.reset();
      fill(c, **planned.value(), blocking_);
      if (!blocking_.program->once.empty() && queue_.may_run_once())
        return queue_.executor_.is_traced() ? run_once<true>() : run_once<false>();
      if (!is_posted(blocking_.program->operation)) return run_alone();
    }
  }
  return submit_all(calls);  // after the asynchronous operations in progress, or as one of them
}

// Runs a program in `once` form: one pass over the lanes without bookkeeping.
template <bool kTraced>
Status HostBackend::run_once() {
  Operation& op = blocking_;
  const Program& p = *op.program;
  DriverWatch watch(queue_);
  HostSpin spin(queue_.spin(), watch, queue_.bell());
  Executor& executor = queue_.executor_;
  queue_.alone_ = &op;
  op.started = true;
  queue_.number(op);
  if (kTraced) executor.begin_once();
  constexpr auto step = kTraced ? &Executor::step_once_traced : &Executor::step_once;
  for (const OnceStep& at : p.once) {
    const ProgramStep& s = *at.step;
    // announce() adds no latency here, because the first messages are already sent and this rank may have to wait.
    if (!s.recv.empty() && &at != p.once.data()) queue_.announce(op);
    if ((executor.*step)(op, at)) {
      // This rank only receives, and the message had already arrived. The next operation's message may have arrived
      // too.
      if (p.writes.empty())
        for (ReadPort* r : s.recv) r->fifo.prefetch(s.once_steps);
      continue;
    }
    for (uint32_t lane = 0; lane < p.lanes.size(); ++lane) op.lanes[lane] = {0, lane < at.lane ? uint64_t{1} : 0};
    op.lanes[at.lane].pc = at.pc;  // for the diagnosis
    do {
      if (!spin.idle(executor.missing())) return queue_.failure();
      executor.forget_missing();
    } while (!(executor.*step)(op, at));
    spin.moved();
  }
  queue_.announce(op);
  queue_.alone_ = nullptr;
  queue_.finish(op);
  return {};
}

Status HostBackend::run_alone() {
  Operation& op = blocking_;
  queue_.begin_alone(op);
  if (!op.done.load(std::memory_order_relaxed)) {
    DriverWatch watch(queue_);
    HostSpin spin(queue_.spin(), watch, queue_.bell());
    for (;;) {
      if (queue_.step_alone(op)) {
        if (op.done.load(std::memory_order_relaxed)) break;
        spin.moved();
      } else if (!spin.idle(queue_.executor().missing())) {
        break;  // the queue has failed, and op with it
      }
    }
  }
  queue_.rest();
  return std::move(op.status);
}

Expected<std::shared_ptr<Operation>> HostBackend::admit(const Call& c) {
  auto op = c.work != nullptr ? std::static_pointer_cast<Operation>(c.work) : std::make_shared<Operation>(this);
  const std::lock_guard driver(*this);
  std::erase_if(under_way_, [](const auto& o) { return o->done.load(std::memory_order_acquire); });
  const auto planned = planner_.plan(c.shape);
  if (!planned.ok()) return not_started(c.shape, planned.status());
  op->plan = *planned.value();
  fill(c, **planned.value(), *op);
  under_way_.push_back(op);
  op->source = c.source;
  if (is_posted(op->program->operation)) queue_.post(*op, planner_);
  else queue_.admit(*op);
  op->submitted.store(true, std::memory_order_release);
  return op;
}

Status HostBackend::submit_all(std::span<Call> calls) {
  Status first;
  std::vector<std::shared_ptr<Operation>> blocking;
  std::vector<HostBackend*> asynchronous;
  for (Call& c : calls) {
    auto& b = *static_cast<HostBackend*>(c.backend);
    auto admitted = [&]() -> Expected<std::shared_ptr<Operation>> {
      if (c.work != nullptr)
        if (const Status s = b.start_progress(); !s.ok()) return b.not_started(c.shape, s);
      return b.admit(c);
    }();
    if (!admitted.ok()) {
      if (c.work != nullptr) c.work->end(admitted.status());
      if (first.ok()) first = admitted.status();
    } else if (c.work == nullptr) {
      blocking.push_back(std::move(*admitted));
    } else if (std::ranges::find(asynchronous, &b) == asynchronous.end()) {
      asynchronous.push_back(&b);
    }
  }
  for (HostBackend* b : asynchronous) b->progress_->kick(b->queue_);
  Status ran = run(blocking);
  return first.ok() ? ran : first;
}

std::vector<OperationQueue*> HostBackend::queues_of(std::span<const std::shared_ptr<Operation>> batch) {
  std::vector<OperationQueue*> queues;
  for (const auto& op : batch) {
    OperationQueue* const q = &static_cast<HostBackend*>(op->backend)->queue_;
    if (std::ranges::find(queues, q) == queues.end()) queues.push_back(q);
  }
  return queues;
}

Status HostBackend::run(std::span<const std::shared_ptr<Operation>> batch, uint64_t end_ns) {
  const std::vector<OperationQueue*> queues = queues_of(batch);
  if (queues.empty()) return {};
  QueueWatch watch(queues);
  SpinSettings settings = queues[0]->spin();
  HostSpin spin(settings, watch, queues[0]->bell(), watch.more_bells());
  for (OperationQueue* q : queues) q->contend();
  bool done = false, in_time = true;
  while (!(done = all_done(batch)) && in_time) {
    bool moved = false;
    for (OperationQueue* q : queues)
      if (q->drive()) {
        moved |= q->step();
        q->leave();
      }
    if (moved) spin.moved();
    else spin.idle();
    watch.end_pass();
    in_time = end_ns == kNever || monotonic_ns() < end_ns;
  }
  for (OperationQueue* q : queues) {
    q->stop_contending();
    q->rest();
  }
  return done ? first_error(batch) : Status(StatusCode::kInProgress, "");
}

Status HostBackend::wait(WorkState& work, uint64_t end_ns) {
  const std::shared_ptr<Operation> op(std::shared_ptr<Operation>(), static_cast<Operation*>(&work));  // the caller's
  Status s = run(std::span(&op, 1), end_ns);
  if (end_ns != kNever && !work.done.load(std::memory_order_acquire)) look_at_intervals();
  return s;
}

// Many short waits, none of which is long enough to look for a death or the end of the deadline.
void HostBackend::look_at_intervals() {
  constexpr uint64_t kIntervalNs = 1'000'000;
  const uint64_t now = monotonic_ns();
  if (now < next_look_ns_.load(std::memory_order_relaxed)) return;
  next_look_ns_.store(now + kIntervalNs, std::memory_order_relaxed);
  OperationQueue* const queue = &queue_;
  QueueWatch(std::span(&queue, 1)).check_wait(0);
}

Status HostBackend::drain() {
  lock();
  const std::vector<std::shared_ptr<Operation>> mine = under_way_;  // kept alive: others may forget them meanwhile
  unlock();
  Status first = run(mine);
  lock();
  const auto unexpected = queue_.arriving_unexpected();  // otherwise the transport would store into freed memory
  unlock();
  Status last = run(unexpected);
  return first.ok() ? last : first;
}

void HostBackend::stop() {
  (void)drain();
  if (is_helped_) progress_->remove(queue_);
}

void HostBackend::set_progress(std::shared_ptr<ProgressThread> thread, const std::optional<Binding>& binding) {
  progress_ = thread != nullptr ? std::move(thread) : ProgressThread::of_process();
  binding_ = binding;
}

Status HostBackend::finish(Status ended) {
  const std::lock_guard driver(*this);
  return ended.ok() ? queue_.compare_calls() : ended;
}

Status HostBackend::error() {
  if (const auto by = transport_.aborted_by())
    return make_error(StatusCode::kAborted, "rank {}: {}", rank_, abort_text(transport_, *by));
  return {};
}

Status HostBackend::start_progress() {
  const std::lock_guard guard(progress_mutex_);
  if (is_helped_) return {};
  RONDO_TRY(progress_->add(queue_, binding_));
  is_helped_ = true;
  return {};
}

Expected<std::string> HostBackend::explain(const CallShape& shape) {
  const std::lock_guard driver(*this);
  RONDO_TRY_ASSIGN(const auto* plan, planner_.plan(shape));
  return (*plan)->reason;
}

Expected<double> HostBackend::forecast_us(const CallShape& shape) {
  const std::lock_guard driver(*this);
  RONDO_TRY_ASSIGN(const auto found, planner_.candidates(shape));
  return found.front().forecast_ns / 1e3;
}

// The operations in progress go on while this rank waits for the others. Otherwise another rank that must finish such
// an operation before it calls alloc would wait forever.
Expected<void*> HostBackend::alloc(uint64_t bytes, const ControlGather& control) {
  const std::lock_guard one_at_a_time(control.mutex);
  RONDO_TRY_ASSIGN(void* const memory, transport_.alloc(bytes));
  const std::lock_guard driver(*this);
  transport_.adopt_alloc();
  return memory;
}

Status HostBackend::free(void* ptr, const ControlGather& control) {
  const std::lock_guard one_at_a_time(control.mutex);
  const std::lock_guard driver(*this);
  return transport_.free(ptr);
}

// Returns true if all ranks can access the buffer without a registration. Ranks that are threads can access any buffer.
bool HostBackend::reaches(const void* ptr, uint64_t bytes) const {
  const RemoteAddress at = transport_.describe(ptr, bytes);
  return at.region != RemoteAddress::kNowhere && at.region != RemoteAddress::kByCopy;
}

Status HostBackend::register_memory(void* ptr, uint64_t bytes, const ControlGather&) {
  if (reaches(ptr, bytes)) return {};
  return unsupported(
      "rank {}: other processes cannot map host memory that already exists: allocate it with rondo_alloc", rank_);
}

Status HostBackend::deregister_memory(void* ptr, const ControlGather&) {
  return reaches(ptr, 1) ? Status() : bad("ptr", "is not registered");
}

}  // namespace rondo
