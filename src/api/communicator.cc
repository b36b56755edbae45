#include "rondo/communicator.h"
#include "base/error.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "api/communicator_impl.h"
#include "api/machine_probe.h"
#include "api/process_control.h"
#include "api/thread_control.h"
#include "base/forks.h"
#include "base/thread.h"
#include "bootstrap/rendezvous.h"
#include "device/device_side.h"
#include "launch/launch.h"
#include "rondo/fsdp/device.h"
#include "rondo/trace.h"
#include "trace/clock.h"

namespace rondo {
AbortToken::AbortToken() : raised_(std::make_shared<std::atomic<bool>>(false)) {}

Communicator::Communicator(std::unique_ptr<CommunicatorImpl> impl) : impl_(std::move(impl)) {}

namespace {

// Keeps a communicator that fork() has copied. Its destructor would use the parent's threads, connections and shared
// memory. The kernel frees its memory and descriptors when this process ends.
void keep_copy(std::unique_ptr<CommunicatorImpl> impl) {
  struct Copy {
    std::unique_ptr<CommunicatorImpl> impl;
    Copy* next;
  };
  static std::atomic<Copy*> copies{nullptr};
  Copy* const copy = new Copy{std::move(impl), copies.load()};
  while (!copies.compare_exchange_weak(copy->next, copy)) {
  }
}

// Frees aborted communicators of device memory. A call of theirs may be queued behind the caller's own work, which may
// never end, and freeing device memory waits for all work of the device. Therefore a separate thread frees them. It
// does not keep the process from exiting, and ends when it has freed all.
class Reaper {
 public:
  /// Takes a communicator. Returns when all are freed, or a second after the first of them was taken.
  void take(std::unique_ptr<CommunicatorImpl> impl) {
    constexpr auto kMostWait = std::chrono::seconds(1);
    const auto now = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    if (all_.empty() && !frees_) since_ = now;
    all_.push_back(std::move(impl));
    if (!runs_) {
      const NoSignals inherited;
      Thread thread;
      const Status started = thread.start("the thread that frees aborted communicators", [this] { run(); });
      if (!started.ok()) return;  // the next one starts it
      thread.detach();
      runs_ = true;
    }
    changed_.wait_until(lock, since_ + kMostWait, [&] { return all_.empty() && !frees_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!all_.empty()) {
      const auto done = std::find_if(all_.begin(), all_.end(), [](const auto& i) { return i->device()->is_idle(); });
      if (done != all_.end()) {
        std::unique_ptr<CommunicatorImpl> impl = std::move(*done);
        all_.erase(done);
        frees_ = true;
        lock.unlock();
        impl.reset();
        lock.lock();
        frees_ = false;
      } else {
        changed_.wait_for(lock, std::chrono::milliseconds(2));
      }
    }
    runs_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<CommunicatorImpl>> all_;
  std::chrono::steady_clock::time_point since_;  // when it last had none
  bool runs_ = false, frees_ = false;
};

}  // namespace

Communicator::~Communicator() {
  const NoCancel no_cancel;
  if (!impl_->is_of_this_process()) keep_copy(std::move(impl_));
  else if (impl_->device() != nullptr && impl_->is_aborted()) of_this_process<Reaper>().take(std::move(impl_));
  impl_.reset();
}

Expected<UniqueId> Communicator::make_unique_id() {
  const NoCancel no_cancel;
  return rondo::make_unique_id();
}
Expected<UniqueId> Communicator::unique_id_at(const std::string& host_port, const std::string& secret, bool open) {
  const NoCancel no_cancel;
  return rondo::unique_id_at(host_port, secret, open);
}

Expected<std::unique_ptr<Communicator>> Communicator::wrap(Expected<std::unique_ptr<CommunicatorImpl>> made) {
  RONDO_TRY(made.status());
  return std::unique_ptr<Communicator>(*made != nullptr ? new Communicator(std::move(*made)) : nullptr);
}

Expected<std::unique_ptr<Communicator>> Communicator::init_rank(int nranks, const UniqueId& id, Rank rank,
                                                                const Config& config) {
  const NoCancel no_cancel;
  return wrap(init_communicator(nranks, id, rank, config));
}

Expected<std::unique_ptr<Communicator>> Communicator::init_env(const Config& config) {
  const NoCancel no_cancel;
  RONDO_TRY_ASSIGN(const Settings settings, read_settings(config));
  RONDO_TRY_ASSIGN(const auto device, device_of(config));
  const ChildOptions options{settings, config.abort, nullptr, device};
  RONDO_TRY_ASSIGN(auto bootstrap, join_from_environment(bootstrap_options(options)));
  return wrap(make_process_communicator(std::move(bootstrap), options));
}

Expected<std::vector<std::unique_ptr<Communicator>>> Communicator::init_all(int nranks, const Config& config) {
  if (nranks < 1 || nranks > kMaxRanks) return invalid_argument("nranks is {}: expected 1 to {}", nranks, kMaxRanks);
  const NoCancel no_cancel;
  RONDO_TRY_ASSIGN(Settings settings, read_settings(config));
  RONDO_TRY_ASSIGN(const std::vector<int> devices, devices_of(config, nranks));
  if (settings.costs == nullptr && devices.empty() && nranks > 1) settings.costs = costs_of_this_machine();
  RONDO_TRY_ASSIGN(auto impls, make_thread_communicators(nranks, {settings, config.abort}, devices));
  std::vector<std::unique_ptr<Communicator>> comms;
  for (auto& impl : impls) comms.push_back(CommunicatorImpl::handle(std::move(impl)));
  return comms;
}

Rank Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->nranks(); }
std::string_view Communicator::transport() const { return impl_->transport().name(); }

uint64_t Communicator::device_bytes() const {
  DeviceEngine* device = impl_->is_of_this_process() ? impl_->device() : nullptr;
  return device != nullptr ? device->transport().staging_bytes() : 0;
}
Expected<void*> Communicator::alloc(uint64_t bytes) {
  return guarded(*impl_, [&] { return impl_->alloc(bytes); });
}
Status Communicator::free(void* ptr) {
  return guarded(*impl_, [&] { return impl_->free(ptr); });
}
Status Communicator::register_memory(void* ptr, uint64_t bytes) {
  return guarded(*impl_, [&] { return impl_->register_memory(ptr, bytes); });
}
Status Communicator::deregister_memory(void* ptr) {
  return guarded(*impl_, [&] { return impl_->deregister_memory(ptr); });
}
Expected<std::unique_ptr<Communicator>> Communicator::split(int colour, int key, const Config& config) {
  return guarded(*impl_, [&] { return wrap(impl_->split(colour, key, config)); });
}
Expected<std::unique_ptr<Communicator>> Communicator::shrink(const std::vector<Rank>& excluded, const Config& config) {
  return guarded(*impl_, [&] { return wrap(impl_->shrink(excluded, config)); });
}
Expected<std::unique_ptr<Communicator>> Communicator::grow(int new_nranks, const UniqueId* id, const Config& config) {
  UniqueId common;
  return guarded(*impl_, [&] { return wrap(impl_->grow(new_nranks, id, config, &common)); });
}
Status Communicator::finalize() {
  return guarded(*impl_, [&] { return impl_->finalize(); });
}
void Communicator::abort() {
  const NoCancel no_cancel;
  if (impl_->is_of_this_process()) impl_->abort();
}
Status Communicator::error() const {
  return guarded(*impl_, [&] { return impl_->error(); });
}
Expected<double> Communicator::forecast_us(Collective collective, uint64_t count_elems, Dtype dtype, Op op, Rank root,
                                           const CallOptions* options) {
  return guarded(*impl_, [&] { return impl_->forecast_us({collective, count_elems, root, dtype, op}, options); });
}
std::string Communicator::explain_plan(Collective collective, uint64_t count_elems, Dtype dtype, Op op) {
  const auto text = guarded(*impl_, [&] { return impl_->explain_plan({collective, count_elems, 0, dtype, op}); });
  return text.ok() ? *text : text.status().to_string();
}

Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;
Work::~Work() = default;

namespace {
Status no_operation() { return Status(StatusCode::kInvalidArgument, "this Work belongs to no operation"); }

Status wait_until(WorkState* state, uint64_t end_ns) {
  if (state == nullptr) return no_operation();
  if (!state->submitted.load(std::memory_order_acquire))
    return Status(StatusCode::kInvalidArgument, "the operation's group is still open: end it before waiting");
  if (state->done.load(std::memory_order_acquire)) return state->status;
  RONDO_TRY(state->backend->check_process());
  const NoCancel no_cancel;
  return state->backend->wait(*state, end_ns);
}
}  // namespace

Status Work::wait() { return wait_until(state_.get(), kNever); }

Status Work::wait_for(double seconds) {
  if (!(seconds >= 0)) return invalid_argument("seconds is {}: expected 0 or more", seconds);
  constexpr double kMostSeconds = 1e9;  // 30 years
  return wait_until(state_.get(), monotonic_ns() + static_cast<uint64_t>(std::min(seconds, kMostSeconds) * 1e9));
}

Status Work::on_done(std::function<void(const Status&)> fn) {
  if (state_ == nullptr) return no_operation();
  if (!fn) return Status(StatusCode::kInvalidArgument, "fn is empty");
  if (!state_->done.load(std::memory_order_acquire)) RONDO_TRY(state_->backend->check_process());
  return state_->when_done(std::move(fn));
}

Status Work::test() {
  if (state_ == nullptr) return no_operation();
  if (state_->done.load(std::memory_order_acquire)) return state_->status;
  if (state_->submitted.load(std::memory_order_acquire)) RONDO_TRY(state_->backend->check_process());
  return Status(StatusCode::kInProgress, "");
}

Status trace_start(Communicator& comm, const TraceOptions& options) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).start_trace(options.directory, options.num_records); });
}

Status trace_stop(Communicator& comm) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).stop_trace(); });
}

uint64_t trace_clock() { return ticks(); }

bool is_traced(Communicator& comm) { return impl_of(comm).is_of_this_process() && impl_of(comm).tracing().is_on(); }

void trace_span(Communicator& comm, TraceSpan span) {
  if (impl_of(comm).is_of_this_process()) impl_of(comm).tracing().add_span(std::move(span));
}

Status write_flight_record(Communicator& comm, const std::string& directory) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).tracing().write_flight(directory, "request"); });
}

namespace fsdp {
int device_of(Communicator& comm) { return impl_of(comm).backend().ordinal(); }
}  // namespace fsdp

}  // namespace rondo
