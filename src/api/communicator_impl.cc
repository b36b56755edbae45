#include "api/communicator_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/no_cancel.h"

namespace rondo {
namespace {

const KernelTable& kernels_for(const Settings& settings) {
  const KernelTable* t = kernel_table(simd_level_from_name(settings.simd).value_or(best_simd_level()));
  RONDO_CHECK(t != nullptr);
  return *t;
}

bool overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

struct Sizes {
  uint64_t in_bytes, out_bytes;        // of what this rank holds
  uint64_t in_offset, out_offset;      // in place: in + in_offset == out + out_offset
  bool may_be_in_place;
};

inline Sizes sizes_of(const PlanRequest& r, const TypeRow& types, Rank rank, int nranks) {
  const CollectiveTraits& t = collective_traits(r.collective);
  const auto held = [&](Holders h) { return h == Holders::kEverybody || (h == Holders::kRoot && r.root == rank); };
  const bool cut = t.in_parts == Parts::kEach, spread = t.out_parts == Parts::kEach;
  uint64_t in = r.count_elems * parts(t.in_parts, nranks), out = r.count_elems * parts(t.out_parts, nranks);
  uint64_t mine = r.count_elems * static_cast<uint64_t>(rank);
  if (r.counts != nullptr) {
    in = r.counts->in.end();
    out = r.counts->out.end();
    mine = (cut ? r.counts->in : r.counts->out).part(static_cast<uint64_t>(rank)).first_elem;
  }
  const uint64_t in_elem = dtype_bytes(types.input), out_elem = dtype_bytes(types.output);
  return {held(t.in_holders) ? in * in_elem : 0, held(t.out_holders) ? out * out_elem : 0,
          cut && !spread ? mine * in_elem : 0, spread && !cut ? mine * out_elem : 0,
          !(cut && spread) && types.input == types.output};
}

/// False where every order of operations gives the same bits.
bool order_matters(Collective c, Dtype t, Op op) {
  const bool exact = accumulator_of(t) != Dtype::kFloat32 && t != Dtype::kFloat64;  // integers
  return collective_reduces(c) && !exact && op != Op::kMin && op != Op::kMax;
}

constexpr double kMostSeconds = 1e9;  // 31 years; as nanoseconds it fits 64 bits
constexpr uint32_t kKnownPromises = RONDO_PROMISE_SAME_BITS_PER_RUN | RONDO_PROMISE_RANK_ORDER |
                                    RONDO_PROMISE_SAME_BITS_PER_SIZE | RONDO_PROMISE_SAME_BITS_PER_ALGORITHM |
                                    RONDO_PROMISE_SAME_BITS_PER_TRANSPORT;

}  // namespace

CommunicatorImpl::CommunicatorImpl(Rank rank, const HostLayout& hosts, const Settings& settings,
                                   const SpinSettings& spin, std::unique_ptr<Transport> transport)
    : rank_(rank),
      nranks_(hosts.nranks()),
      settings_(settings),
      transport_(std::move(transport)),
      queue_(rank, nranks_, *transport_, spin),
      planner_(rank, hosts, settings_.for_planner(), queue_.ports(), kernels_for(settings)) {
  auto tracing = trace_settings(settings_);  // has been checked with the other settings
  tracing_ = std::make_unique<Tracing>(queue_, tracing.ok() ? std::move(*tracing) : TraceSettings());
}

CommunicatorImpl::~CommunicatorImpl() {
  tracing_->set_device_calls(nullptr);
  device_.reset();  // the records of its last calls go into the trace
  (void)drain();  // this rank's outstanding work first; its errors are its waiters'
  progress_.reset();
  tracing_.reset();
  if (control_ != nullptr) control_->leave_because(queue_.cause());
}

Status CommunicatorImpl::check_process() const {
  return is_of_this_process() ? Status() : forked_error(fmt::format("rank {}", rank_));
}

void CommunicatorImpl::lock() {
  if (queue_.drive()) [[likely]] return;
  queue_.contend();
  for (uint32_t i = 0; !queue_.drive(); ++i)
    if (i < 100) cpu_pause();
    else sched_yield();
  queue_.stop_contending();
}

Status CommunicatorImpl::bad(std::string_view argument, std::string_view why) const {
  return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: {} {}", rank_, argument, why));
}

// Which call it was, when an error comes before it has a place in the order of operations.
Status CommunicatorImpl::not_started(const CallArguments& c, const Status& why) const {
  if (why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kUnsupported) return why;  // they say it
  const PlanRequest& r = c.request;
  return Status(why.code(), fmt::format("rank {}: {}{} of {} {} was not started: {}", rank_,
                                        collective_name(r.collective), r.counts != nullptr ? "_v" : "", r.count_elems,
                                        dtype_name(r.dtype), why.message()));
}

inline Status CommunicatorImpl::check_type(const PlanRequest& r) const {
  if (static_cast<int>(r.dtype) >= kNumDtypes) [[unlikely]]
    return bad("dtype", fmt::format("is {}, which is no element type", static_cast<int>(r.dtype)));
  if (static_cast<int>(r.op) >= kNumOps) [[unlikely]]
    return bad("op", fmt::format("is {}, which is no operator", static_cast<int>(r.op)));
  if (r.root < 0 || r.root >= nranks_) [[unlikely]]
    return bad(is_point_to_point(r.collective) ? "peer" : "root",
               fmt::format("is {}: the ranks of this communicator are 0 to {}", r.root, nranks_ - 1));
  return {};
}

inline Status CommunicatorImpl::check_count(const PlanRequest& r) const {
  if (r.count_elems > UINT64_MAX / 16 / static_cast<uint64_t>(nranks_)) [[unlikely]]
    return bad("count_elems", fmt::format("is {}: more bytes than 64 bits can count", r.count_elems));
  return {};
}

Status CommunicatorImpl::check(CallArguments& c, const CallOptions* options) const {
  const PlanRequest& r = c.request;
  RONDO_TRY(check_type(r));
  TypeRow types = uniform_row(r.dtype);
  if (options != nullptr && options->row != nullptr) [[unlikely]] types = *options->row;
  if (types.input != r.dtype || !row_supported(types)) [[unlikely]] {
    auto name = [](Dtype d) { return static_cast<int>(d) < kNumDtypes ? dtype_name(d) : "?"; };
    return Status(StatusCode::kUnsupported,
                  fmt::format("rank {}: no kernel for input {}, wire {}, accumulator {}, output {} of {} elements; all four "
                              "types may follow from the call's, or input and output be float, bfloat16 or half, the wire one "
                              "of these or fp8, and the accumulator float (docs/types.md)", rank_, name(types.input),
                              name(types.wire), name(types.accumulator), name(types.output), dtype_name(r.dtype)));
  }
  if (is_point_to_point(r.collective) && types != uniform_row(r.dtype))
    return Status(StatusCode::kUnsupported, fmt::format("rank {}: send and recv carry one type and convert nothing", rank_));
  if (r.count_elems != 0 || r.counts != nullptr) RONDO_TRY(check_buffers(c, types));
  if (options == nullptr) [[likely]]
    return r.op == Op::kPremulSum ? bad("premul", "is needed: premul_sum scales by it") : Status();
  if (r.op == Op::kPremulSum && options->premul == nullptr) return bad("premul", "is a null pointer");
  if ((options->promises & ~kKnownPromises) != 0)
    return Status(StatusCode::kUnsupported, fmt::format("rank {}: promises {:#x} are not known", rank_,
                                                        options->promises & ~kKnownPromises));
  for (const auto& [name, blocks] : {std::pair("min_blocks", options->min_blocks), {"max_blocks", options->max_blocks}})
    if (blocks < 0 || blocks > 1024) return bad(name, fmt::format("is {}: expected 1 to 1024, or 0", blocks));
  if (options->max_blocks != 0 && options->min_blocks > options->max_blocks)
    return bad("max_blocks", fmt::format("is {}, below min_blocks, {}", options->max_blocks, options->min_blocks));
  if (!(options->deadline_s >= 0)) return bad("deadline_s", fmt::format("is {}: not a time", options->deadline_s));
  return {};
}

Status CommunicatorImpl::check_buffers(CallArguments& c, const TypeRow& types) const {
  const PlanRequest& r = c.request;
  RONDO_TRY(check_count(r));
  const Sizes s = sizes_of(r, types, rank_, nranks_);
  c.in_bytes = s.in_bytes;
  c.out_bytes = s.out_bytes;
  if (s.in_bytes != 0 && c.in == nullptr) [[unlikely]] return bad("in", "is a null pointer");
  if (s.out_bytes != 0 && c.out == nullptr) [[unlikely]] return bad("out", "is a null pointer");
  if (s.in_bytes == 0 || s.out_bytes == 0) return {};
  const auto in_at = reinterpret_cast<uintptr_t>(c.in) + s.in_offset;
  const auto out_at = reinterpret_cast<uintptr_t>(c.out) + s.out_offset;
  if ((in_at != out_at || !s.may_be_in_place) && overlap(c.in, s.in_bytes, c.out, s.out_bytes)) [[unlikely]]
    return bad("in and out", "overlap, but not as an operation in place does (see rondo.h)");
  return {};
}

void CommunicatorImpl::fill(const CallArguments& c, const Plan& plan, Operation& op) const {
  op.program = plan.program.get();
  op.fallback = plan.fallback.get();
  op.in = static_cast<const std::byte*>(c.in);
  op.out = static_cast<std::byte*>(c.out);
  op.in_bytes = c.in_bytes;
  op.out_bytes = c.out_bytes;
  op.deadline_ns = static_cast<uint64_t>(std::min(c.deadline_s, kMostSeconds) * 1e9);
  op.tag = c.tag;
  std::memcpy(op.premul, c.premul, sizeof(op.premul));
}

// The options of a call that has been checked.
Status CommunicatorImpl::read_options(const CallOptions& options, CallArguments& c) const {
  PlanRequest& r = c.request;
  if (options.algorithm != nullptr) {
    if (is_point_to_point(r.collective)) return bad("algorithm", "is set, but a message has none");
    RONDO_TRY_ASSIGN(r.algorithm, planner_.find(r.collective, options.algorithm));
  }
  if (order_matters(r.collective, r.dtype, r.op)) r.promises = options.promises & ~RONDO_PROMISE_SAME_BITS_PER_RUN;
  if (options.row != nullptr) r.row = *row_index(*options.row);
  if (options.premul_on_device && device_ == nullptr)
    return bad("premul", "is said to stand in device memory, but this is a communicator of host memory");
  if (r.op == Op::kPremulSum && options.premul_on_device) c.premul_at = options.premul;
  else if (r.op == Op::kPremulSum) std::memcpy(c.premul, options.premul, dtype_bytes(accumulator_of(r.dtype)));
  if (options.stream != nullptr && device_ == nullptr)
    return Status(StatusCode::kUnsupported,
                  fmt::format("rank {}: stream is set, but this is a communicator of host memory; "
                              "leave it null",
                              rank_));
  if (options.launch_event != nullptr && device_ == nullptr)
    return Status(
        StatusCode::kUnsupported,
        fmt::format("rank {}: launch_event is set, but a call on host memory launches no kernel; leave it null: "
                    "a blocking call is complete when it (or its group) has returned",
                    rank_));
  c.stream = options.stream;
  c.launch_event = options.launch_event;
  if (device_ != nullptr && !is_point_to_point(r.collective)) {  // messages take what is left
    r.min_blocks = static_cast<uint16_t>(options.min_blocks);
    r.max_blocks = static_cast<uint16_t>(options.max_blocks);
  }
  if (options.deadline_s > 0) c.deadline_s = options.deadline_s;
  c.tag = options.tag;
  return {};
}

Status CommunicatorImpl::submit_to_device(const CallArguments& c, Work* work) {
  const NoCancel no_cancel;
  std::shared_ptr<WorkState> state;
  if (work != nullptr) {
    state = std::make_shared<WorkState>();
    state->comm = this;
    state->submitted.store(true, std::memory_order_release);
  }
  const DeviceRequest request = device_request(c, state);
  const DeviceEngine::Entry entry{&device_->engine(), &request};
  RONDO_TRY(DeviceEngine::run(std::span(&entry, 1)));
  if (work != nullptr) work->state_ = std::move(state);
  return {};
}

Status CommunicatorImpl::submit(const Call& call, const CallOptions* options, Work* work) {
  CallArguments c{
      {call.collective, call.dtype, call.op, 0, call.root, call.count_elems, nullptr, 0, 0, 0, call.counts.get()},
      call.in,
      call.out,
      settings_.timeout_s};
  if (!is_of_this_process()) [[unlikely]]
    return check_process();
  if (call.counts != nullptr) [[unlikely]] c.counts = call.counts;
  RONDO_TRY(check(c, options));
  // Before anything is sent: else the peers could still finish an operation that this rank refuses.
  if (transport_->aborted_by()) [[unlikely]] return not_started(c, error());
  if (options != nullptr) {
    RONDO_TRY(read_options(*options, c));
    if (options->check_only) return {};
  }
  if (group_open()) {
    add_to_group(*this, c, work);
    return {};
  }
  if (device_ != nullptr) [[unlikely]]
    return submit_to_device(c, work);
  if (work != nullptr) {
    if (Status s = make_progress_thread(); !s.ok()) return not_started(c, s);
    work->state_ = std::make_shared<WorkState>();
    const Status s = admit(c, work->state_);
    if (!s.ok()) work->state_.reset();
    else kick_progress();
    return s;
  }
  lock();
  if (!queue_.idle()) {  // asynchronous operations are under way: ours comes after them
    unlock();
    auto state = std::make_shared<WorkState>();
    RONDO_TRY(admit(c, state));
    const BatchEntry entry{&queue_, &state->op};
    return Engine::run(std::span(&entry, 1));
  }
  auto planned = planner_.plan(c.request);
  if (!planned.ok()) {
    unlock();
    return not_started(c, planned.status());
  }
  blocking_.reset();
  fill(c, **planned.value(), blocking_);
  Status s = Engine::run(queue_, blocking_);
  unlock();
  return s;
}

Status CommunicatorImpl::admit(const CallArguments& c, const std::shared_ptr<WorkState>& state) {
  lock();
  forget_finished();
  auto planned = planner_.plan(c.request);
  if (!planned.ok()) {
    unlock();
    return not_started(c, planned.status());
  }
  state->comm = this;
  state->plan = *planned.value();
  fill(c, *state->plan, state->op);
  under_way_.push_back(state);
  queue_.admit(state->op);
  state->submitted.store(true, std::memory_order_release);
  unlock();
  return {};
}

void CommunicatorImpl::forget_finished() {
  std::erase_if(under_way_, [](const auto& w) { return w->op.done.load(std::memory_order_acquire); });
}

Status CommunicatorImpl::make_progress_thread() {
  std::lock_guard guard(progress_mutex_);
  if (progress_ != nullptr) return {};
  RONDO_TRY_ASSIGN(progress_, ProgressThread::create(queue_, binding_));
  return {};
}

void CommunicatorImpl::kick_progress() {
  std::lock_guard guard(progress_mutex_);
  progress_->kick();
}

Status CommunicatorImpl::start_trace(const std::string& directory, uint64_t num_records) {
  lock();
  Status s = tracing_->start(directory, num_records);
  if (s.ok() && device_ != nullptr) {
    s = device_->engine().set_trace(tracing_->trace());
    if (!s.ok()) tracing_->discard();
  }
  unlock();
  return s;
}

Status CommunicatorImpl::stop_trace() {
  if (device_ != nullptr) {
    (void)device_->engine().drain();  // what is under way belongs to the trace
    RONDO_TRY(device_->engine().set_trace(nullptr));
  }
  lock();
  Status s = tracing_->stop();
  unlock();
  return s;
}

void CommunicatorImpl::abort() {
  transport_->raise_abort(rank_);
  if (device_ != nullptr) device_->engine().wake();
}

Status CommunicatorImpl::take_device(int ordinal) {
  RONDO_TRY_ASSIGN(device_, DeviceSide::create(rank_, hosts(), ordinal, *transport_, settings_, kernels_for(settings_),
                                               [this](std::string_view mine, std::vector<std::string>* all) {
                                                 return control_->gather(mine, all);
                                               }));
  DeviceEngine& engine = device_->engine();
  tracing_->set_device_calls([&engine] { return engine.look_at_calls(); });
  engine.set_failure_hook([this](const Status& status, std::vector<FlightCurrent> calls) {
    tracing_->device_failing(status, std::move(calls));
  });
  if (StepTrace* trace = tracing_->trace(); trace != nullptr) tracing_->complain(engine.set_trace(trace));
  return {};
}

DeviceRequest CommunicatorImpl::device_request(const CallArguments& c, const std::shared_ptr<WorkState>& state) const {
  DeviceRequest r;
  r.request = c.request;
  r.in = c.in;
  r.out = c.out;
  r.in_bytes = c.in_bytes;
  r.out_bytes = c.out_bytes;
  std::memcpy(r.premul, c.premul, sizeof r.premul);
  r.premul_at = c.premul_at;
  r.deadline_s = std::min(c.deadline_s, kMostSeconds);
  r.tag = c.tag;
  r.stream = static_cast<cuda::Stream>(c.stream);
  r.launch_event = static_cast<cuda::Event>(c.launch_event);
  if (state != nullptr) r.op = std::shared_ptr<Operation>(state, &state->op);
  return r;
}

Status CommunicatorImpl::error() {
  if (queue_.has_failed() && !finalized_) return queue_.failure();
  if (device_ != nullptr) RONDO_TRY(device_->engine().error());
  if (auto by = transport_->aborted_by())
    return Status(StatusCode::kAborted, fmt::format("rank {}: {}", rank_, abort_text(*transport_, *by)));
  return {};
}

CudaTransport::Gather CommunicatorImpl::gather_for(std::string_view call) {
  return [this, name = std::string(call)](std::string_view mine, std::vector<std::string>* all) {
    return in_call(name, control_->gather(mine, all));
  };
}

Expected<void*> CommunicatorImpl::alloc(uint64_t bytes) {
  constexpr uint64_t kMost = UINT64_MAX / 2;
  if (bytes == 0) return bad("bytes", "is 0");
  if (bytes > kMost) return bad("bytes", fmt::format("is {}: more than a process can address", bytes));
  if (finalized_) return ready();
  if (device_ != nullptr) {
    const std::lock_guard guard(control_mutex_);
    return device_->alloc((bytes + 4095) / 4096 * 4096, gather_for("alloc"));
  }
  lock();
  auto p = transport_->alloc((bytes + 4095) / 4096 * 4096);
  unlock();
  return p;
}

Status CommunicatorImpl::free(void* ptr) {
  if (device_ != nullptr) {
    const std::lock_guard guard(control_mutex_);
    return device_->free(ptr, gather_for("free"));
  }
  lock();
  Status s = transport_->free(ptr);
  unlock();
  return s;
}

Status CommunicatorImpl::register_memory(void* ptr, uint64_t bytes) {
  if (finalized_) return ready();
  if (ptr == nullptr) return bad("ptr", "is a null pointer");
  if (bytes == 0) return bad("bytes", "is 0");
  if (device_ != nullptr) {
    const std::lock_guard guard(control_mutex_);
    return in_call("register_memory", device_->register_memory(ptr, bytes, gather_for("register_memory")));
  }
  // Threads reach any buffer as it stands.
  const RemoteAddress at = transport_->describe(ptr, bytes);
  if (at.region != RemoteAddress::kNowhere && at.region != RemoteAddress::kByCopy) return {};
  return Status(StatusCode::kUnsupported,
                fmt::format("rank {}: register_memory: host memory of a process cannot be mapped by the others when it "
                            "is there already: take it from rondo_alloc",
                            rank_));
}

Status CommunicatorImpl::deregister_memory(void* ptr) {
  if (ptr == nullptr) return bad("ptr", "is a null pointer");
  if (device_ != nullptr) {
    const std::lock_guard guard(control_mutex_);
    return in_call("deregister_memory", device_->deregister_memory(ptr, gather_for("deregister_memory")));
  }
  const RemoteAddress at = transport_->describe(ptr, 1);
  if (at.region != RemoteAddress::kNowhere && at.region != RemoteAddress::kByCopy) return {};
  return bad("ptr", "is not registered");
}

Status CommunicatorImpl::check_planned(const PlanRequest& r) const {
  if (is_point_to_point(r.collective))
    return Status(StatusCode::kUnsupported, fmt::format("rank {}: collective is {}: a message between two ranks has no "
                                                        "plan to choose and no forecast",
                                                        rank_, collective_name(r.collective)));
  RONDO_TRY(check_type(r));
  return check_count(r);
}

Expected<double> CommunicatorImpl::forecast_us(const PlanRequest& request, const CallOptions* options) {
  CallArguments c{request, nullptr, nullptr, settings_.timeout_s};
  RONDO_TRY(check_planned(request));
  if (options != nullptr) {
    if (options->row != nullptr && !row_supported(*options->row)) return bad("row", "is none that rondo carries");
    CallOptions known = *options;
    constexpr uint64_t kAnyScale = 0;
    if (known.premul == nullptr) known.premul = &kAnyScale;
    RONDO_TRY(read_options(known, c));
  }
  if (device_ != nullptr) return device_->engine().forecast_us(c.request);
  lock();
  auto found = planner_.candidates(c.request);
  unlock();
  if (!found.ok()) return found.status();
  return found->front().forecast_ns / 1e3;
}

std::string CommunicatorImpl::explain_plan(const PlanRequest& request) {
  if (const Status s = check_planned(request); !s.ok()) return s.to_string();
  if (device_ != nullptr) {
    auto text = device_->engine().explain(request);
    return text.ok() ? *text : text.status().to_string();
  }
  lock();
  auto planned = planner_.plan(request);
  std::string text = planned.ok() ? (*planned.value())->reason : planned.status().to_string();
  unlock();
  return text;
}

}  // namespace rondo
