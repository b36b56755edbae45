// The watcher of a DeviceEngine: detects the ends of calls, and failures in the background.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "device/engine/device_engine.h"
#include "plan/describe_program.h"

namespace rondo {
namespace {

constexpr auto kBusyLook = std::chrono::microseconds(500);  // while calls are running
constexpr auto kIdleLook = std::chrono::milliseconds(100);  // between calls, for aborts and deaths during graph replays
constexpr uint64_t kLostEveryNs = 50'000'000;               // a check for dead peers costs a system call

}  // namespace

void DeviceEngine::watch() {
  cuda::CurrentContext current(transport_.context());
  int relaxed = 2;
  cuda::driver()->thread_exchange_capture_mode(&relaxed);  // other threads' captures must not affect this thread
  uint64_t looked_for_lost_ns = 0;
  std::unique_lock lock(watch_mutex_);
  while (!stop_) {
    if (!look_now_)
      watch_changed_.wait_for(lock,
                              outstanding_.empty() && !issuing_ ? std::chrono::microseconds(kIdleLook) : kBusyLook);
    look_now_ = false;
    if (stop_) break;
    const bool retired = retire();
    if (retired) watch_changed_.notify_all();
    if (failed_.load(std::memory_order_relaxed)) {
      // Release streams that wait for flags, until no call is running.
      if ((issuing_ || !outstanding_.empty()) && world_.engine == EngineKind::kStream) transport_.release_streams();
      continue;
    }
    lock.unlock();
    Status wrong = look();
    if (const uint64_t now = monotonic_ns(); wrong.ok() && now - looked_for_lost_ns > kLostEveryNs) {
      looked_for_lost_ns = now;
      wrong = lost_peer();
    }
    if (!wrong.ok()) fail(std::move(wrong));
    lock.lock();
  }
}

// Ends the completed operations, oldest first. The caller holds the lock. Returns true if there was one.
bool DeviceEngine::retire() {
  bool any = false;
  while (!outstanding_.empty()) {
    Outstanding& o = outstanding_.front();
    const cuda::Result r = cuda::driver()->event_query(o.event.get());
    if (r == cuda::kErrorNotReady) break;
    // A kernel that failed has reported it before it ended.
    Status status = failure_;
    if (status.ok()) status = report();
    // A rank that gives up first reports it and then releases all streams. Calls that end after that may be incomplete.
    if (status.ok()) status = aborted();
    if (status.ok() && r != cuda::kSuccess) status = cuda::check(r, "a call on the device");
    if (r == cuda::kSuccess && o.trace != nullptr) trace_call(o);
    if (!status.ok() && failure_.ok()) take_failure(status);
    if (status.ok() && o.sequence != 0) transport_.page(rank_)->finish(o.sequence);
    if (o.work != nullptr) o.work->end(status);
    free_events_.push_back(std::move(o.event));
    if (o.tables.get() != nullptr) free_tables_.push_back(std::move(o.tables));
    outstanding_.pop_front();
    any = true;
  }
  if (any && outstanding_.empty() && !issuing_ && !replayed_) transport_.attend(false);
  return any;
}

// Adds the kernel's records of an ended call to the trace. The caller holds the lock.
void DeviceEngine::trace_call(Outstanding& o) {
  if (!tracing_.on()) return;
  const Status s = tracing_.add(*o.trace, o.call, o.number(), o.plan->main, o.plan->fallback, *kernels_);
  if (!s.ok()) std::fprintf(stderr, "rondo: rank %d: a call is not traced: %s\n", rank_, s.to_string().c_str());
  if (s.ok() && o.call == 0 && o.trace->num_lost() != 0)
    std::fprintf(stderr, "rondo: rank %d: the trace of a launch lacks its first %llu instructions: it keeps %llu\n",
                 rank_, static_cast<unsigned long long>(o.trace->num_lost()),
                 static_cast<unsigned long long>(o.trace->capacity()));
}

Status DeviceEngine::set_trace(StepTrace* trace) {
  if (trace == nullptr) (void)drain();
  cuda::CurrentContext current(transport_.context());
  RONDO_TRY(current.status());
  {
    const std::lock_guard lock(watch_mutex_);
    tracing_.stop();
  }
  if (trace == nullptr) return {};
  RONDO_TRY(tracing_.prepare(*kernels_));  // no other thread uses it while it is off
  const std::lock_guard lock(watch_mutex_);
  tracing_.start(trace);
  return {};
}

void DeviceEngine::set_failure_hook(FailureHook hook) {
  const std::lock_guard lock(watch_mutex_);
  failure_hook_ = std::move(hook);
}

std::vector<FlightCurrent> DeviceEngine::look_at_calls() {
  const std::lock_guard lock(watch_mutex_);
  return calls_under_way();
}

std::vector<FlightCurrent> DeviceEngine::calls_under_way() const {
  std::vector<FlightCurrent> calls;
  const uint64_t now_ns = monotonic_ns();
  for (const Outstanding& o : outstanding_) {
    FlightCurrent c;
    c.operation.posted.shape = o.shape;
    c.operation.posted.sequence = o.number();
    c.operation.posted.tag = o.tag;
    if (o.sequence != 0)
      if (const auto posted = transport_.page(rank_)->read(o.sequence)) c.operation.posted = *posted;
    c.operation.algorithm = algorithm_name(o.shape);
    c.protocol = engine_name(world_.engine);
    c.reason = o.plan->reason;
    c.started = true;
    c.waited_ns = static_cast<int64_t>(now_ns - o.issued_ns);
    calls.push_back(std::move(c));
  }
  return calls;
}

// kAborted if a rank has aborted.
Status DeviceEngine::aborted() const {
  const auto by = transport_.aborted_by();
  return by ? make_error(StatusCode::kAborted, "rank {}: {}", rank_, abort_text(transport_, *by)) : Status();
}

std::string DeviceEngine::who_waits(const Outstanding& o, Rank peer) const {
  if (peer < 0 || o.sequence == 0) return "";
  StatusPage* page = transport_.page(peer);
  if (page == nullptr) return "";
  const uint64_t posted = page->last_posted();
  if (posted < o.sequence) return fmt::format("; rank {} has not called it, its last operation is #{}", peer, posted);
  if (const auto theirs = page->find(o.sequence); theirs && !(*theirs == o.shape))
    return fmt::format("; rank {} calls {} of {} {} instead", peer, collective_name(theirs->collective),
                       theirs->count_elems, dtype_name(theirs->dtype));
  return fmt::format("; rank {} has called it too", peer);
}

// The kernel's report of its failure. The caller holds the lock.
Status DeviceEngine::report() const {
  DeviceControl& c = *control_.as<DeviceControl>();
  const auto failure = static_cast<DeviceFailure>(std::atomic_ref<uint32_t>(c.failed).load(std::memory_order_acquire));
  if (failure == DeviceFailure::kNone) return {};
  const Rank peer = c.peer;
  if (failure == DeviceFailure::kAborted) {
    RONDO_TRY(aborted());
    return make_error(StatusCode::kAborted, "rank {}: the communicator was aborted", rank_);
  }
  std::string what = "a call on the device", which;
  if (!outstanding_.empty()) {
    const Outstanding& o = outstanding_.front();
    what = o.name();
    which = who_waits(o, peer);
  }
  const std::string where = fmt::format("step {} of lane {}, channel {}, loop {}", c.pc, c.lane, c.channel, c.loop);
  if (failure == DeviceFailure::kUnreachable)
    return make_error(StatusCode::kInternal, "rank {}: {}: rank {}'s buffers cannot be reached from here in {}", rank_,
                      what, peer, where);
  if (failure == DeviceFailure::kMismatch)
    return make_error(StatusCode::kMismatch, "rank {}: {}: rank {} sent a message of another operation in {}{}", rank_,
                      what, peer, where, which);
  return make_error(StatusCode::kTimeout,
                    "rank {}: {} waited {:.1f} s (RONDO_TIMEOUT_S or deadline_s) for {} {} in {}{}", rank_, what,
                    static_cast<double>(c.waited_ns) * 1e-9, c.for_room != 0 ? "space at" : "data from",
                    peer >= 0         ? fmt::format("rank {}", peer)
                    : c.for_room != 0 ? std::string("the readers of a connection")
                                      : std::string("another lane"),
                    where, which);
}

// Requests the status pages of ranks on other hosts when a call is late, so that the deadline's message can use them.
// The caller holds the lock.
void DeviceEngine::ask_for_pages() const {
  if (!world_.proxied || outstanding_.empty()) return;
  const Outstanding& o = outstanding_.front();
  if (o.deadline_ns == 0 || monotonic_ns() - o.issued_ns < o.deadline_ns / 2) return;
  for (Rank r = 0; r < nranks_; ++r) (void)transport_.page(r);
}

// Checks for failures while calls are running.
Status DeviceEngine::look() {
  RONDO_TRY(aborted());
  const std::lock_guard lock(watch_mutex_);
  RONDO_TRY(report());
  ask_for_pages();
  if (world_.engine != EngineKind::kStream) return {};
  // Streams have no deadline of their own.
  const uint64_t now = monotonic_ns();
  if (outstanding_.empty() && issuing_ && issue_deadline_ns_ != 0 && now - issue_since_ns_ > issue_deadline_ns_)
    return make_error(StatusCode::kTimeout,
                      "rank {}: a call is longer than its stream's queue, and after {:.1f} s (RONDO_TIMEOUT_S or "
                      "deadline_s) no other rank has made room",
                      rank_, static_cast<double>(now - issue_since_ns_) * 1e-9);
  if (outstanding_.empty()) return {};
  const Outstanding& o = outstanding_.front();
  if (o.deadline_ns == 0 || now - o.issued_ns < o.deadline_ns) return {};
  std::string late;
  for (Rank r = 0; r < nranks_; ++r) {
    StatusPage* const page = r != rank_ && o.sequence != 0 ? transport_.page(r) : nullptr;
    if (page != nullptr && page->last_posted() < o.sequence) late += who_waits(o, r);
  }
  return make_error(StatusCode::kTimeout,
                    "rank {}: {} has not ended {:.1f} s after it was issued (RONDO_TIMEOUT_S or deadline_s){}", rank_,
                    o.name(), static_cast<double>(now - o.issued_ns) * 1e-9, late);
}

// Handles the communicator's first failure: kernels leave, the other ranks are informed, streams are released.
void DeviceEngine::fail(Status status) {
  {
    const std::lock_guard lock(watch_mutex_);
    if (!failure_.ok()) return;
    take_failure(std::move(status));
  }
  if (world_.engine == EngineKind::kStream) transport_.release_streams();
  watch_changed_.notify_all();
}

// The caller holds the lock.
void DeviceEngine::take_failure(Status status) {
  failure_ = std::move(status);
  failed_.store(true, std::memory_order_release);
  std::atomic_ref<uint32_t>(control_.as<DeviceControl>()->abort).store(1, std::memory_order_release);
  transport_.raise_abort(rank_);  // before files are written, because the others wait
  if (failure_hook_ != nullptr) failure_hook_(failure_, calls_under_way());
}

Status DeviceEngine::error() {
  if (!failed_.load(std::memory_order_acquire)) return aborted();
  const std::lock_guard lock(watch_mutex_);
  return failure_;
}

void DeviceEngine::wake() {
  {
    const std::lock_guard lock(watch_mutex_);
    look_now_ = true;
  }
  watch_changed_.notify_all();
}

Status DeviceEngine::wait(WorkState& work, uint64_t end_ns) {
  const auto ended = [&] { return work.done.load(std::memory_order_acquire) || stop_; };
  std::unique_lock lock(watch_mutex_);
  if (end_ns == kNever) watch_changed_.wait(lock, ended);
  else watch_changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(end_ns)), ended);
  return ended() ? work.status : Status(StatusCode::kInProgress, "");
}

// Every call ends: by itself, at its deadline, or soon after an abort or a death. But a call waits for the earlier work
// of its stream, and nothing limits that.
Status DeviceEngine::drain() {
  std::unique_lock lock(watch_mutex_);
  if (!watcher_.joinable()) return {};
  watch_changed_.wait(lock, [&] { return outstanding_.empty(); });
  return failure_;
}

bool DeviceEngine::is_idle() {
  const std::lock_guard lock(watch_mutex_);
  return outstanding_.empty();
}

}  // namespace rondo
