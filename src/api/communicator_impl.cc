#include "api/communicator_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/device_side.h"

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
  uint64_t in_bytes, out_bytes;        // of this rank's buffers
  uint64_t in_offset, out_offset;      // in place: in + in_offset == out + out_offset
  bool may_be_in_place;
};

inline Sizes sizes_of(const CallShape& r, Rank rank, int nranks) {
  const TypeRow types = r.types();
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

/// Returns false if every order of operations gives the same bits.
bool order_matters(Collective c, Dtype t, Op op) {
  const bool exact = accumulator_of(t) != Dtype::kFloat32 && t != Dtype::kFloat64;  // integers
  return collective_reduces(c) && !exact && op != Op::kMin && op != Op::kMax;
}

constexpr double kMostSeconds = 1e9;  // 31 years; in nanoseconds it fits 64 bits
constexpr uint32_t kKnownPromises = RONDO_PROMISE_SAME_BITS_PER_RUN | RONDO_PROMISE_RANK_ORDER |
                                    RONDO_PROMISE_SAME_BITS_PER_SIZE | RONDO_PROMISE_SAME_BITS_PER_ALGORITHM |
                                    RONDO_PROMISE_SAME_BITS_PER_TRANSPORT;

uint64_t nanoseconds(double s) { return static_cast<uint64_t>(std::min(s, kMostSeconds) * 1e9); }

}  // namespace

CommunicatorImpl::CommunicatorImpl(Rank rank, const HostLayout& hosts, const Settings& settings,
                                   const SpinSettings& spin, std::unique_ptr<Transport> transport)
    : rank_(rank),
      nranks_(hosts.nranks()),
      settings_(settings),
      deadline_ns_(nanoseconds(settings.timeout_s)),
      transport_(std::move(transport)),
      host_(rank, hosts, settings_.for_planner(), kernels_for(settings), spin, *transport_) {
  auto tracing = trace_settings(settings_);  // checked before with the other settings
  tracing_ = std::make_unique<Tracing>(queue_, tracing.ok() ? std::move(*tracing) : TraceSettings());
}

CommunicatorImpl::~CommunicatorImpl() {
  tracing_->set_device_calls(nullptr);
  device_.reset();  // writes the records of its last calls to the trace
  host_.stop();
  tracing_.reset();
  if (control_ != nullptr) control_->leave_because(queue_.cause());
}

Status CommunicatorImpl::check_bitwise(const CallShape& r) const {
  if (static_cast<int>(r.op) >= kNumOps)
    return bad("op", fmt::format("is {}, which is not an operator", static_cast<int>(r.op)));
  if (!collective_reduces(r.collective)) return {};
  if (!op_combines(r.op, r.dtype))
    return unsupported("rank {}: {} combines the bits of integers, but dtype is {}: use an integer type of this size",
                       rank_, op_name(r.op), dtype_name(r.dtype));
  if (backend_->ordinal() >= 0)
    return unsupported("rank {}: {} works in host memory, but this is a communicator of device memory", rank_,
                       op_name(r.op));
  return {};
}

Status CommunicatorImpl::check_any_rank(const CallShape& r) const {
  if (r.root == kAnyRank && r.matched && r.collective == Collective::kRecv) return {};
  std::string why = fmt::format("is {}: the ranks of this communicator are 0 to {}", r.root, nranks_ - 1);
  if (r.collective == Collective::kRecv && r.root == kAnyRank) why += "; a recv from any rank needs match_tags";
  return bad(is_point_to_point(r.collective) ? "peer" : "root", why);
}

inline Status CommunicatorImpl::check_type(const CallShape& r) const {
  if (static_cast<int>(r.dtype) >= kNumDtypes) [[unlikely]]
    return bad("dtype", fmt::format("is {}, which is not an element type", static_cast<int>(r.dtype)));
  if (is_bitwise(r.op)) [[unlikely]]
    RONDO_TRY(check_bitwise(r));
  if (r.root < 0 || r.root >= nranks_) [[unlikely]]
    return check_any_rank(r);
  return {};
}

inline Status CommunicatorImpl::check_count(const CallShape& r) const {
  if (r.count_elems > UINT64_MAX / 16 / static_cast<uint64_t>(nranks_)) [[unlikely]]
    return bad("count_elems", fmt::format("is {}: more bytes than 64 bits can count", r.count_elems));
  return {};
}

Status CommunicatorImpl::read_types(const TypeRow& types, CallShape& shape) const {
  const auto row = row_index(types);
  if (types.input != shape.dtype || !row) {
    auto name = [](Dtype d) { return static_cast<int>(d) < kNumDtypes ? dtype_name(d) : "?"; };
    return unsupported(
        "rank {}: no kernel for input {}, wire {}, accumulator {}, output {} of {} elements. Leave "
        "all four types at their defaults, or use float, bfloat16 or half for input and output, one of "
        "these or fp8 for the wire, and float for the accumulator (docs/types.md)",
        rank_, name(types.input), name(types.wire), name(types.accumulator), name(types.output),
        dtype_name(shape.dtype));
  }
  shape.row = *row;
  return {};
}

Status CommunicatorImpl::check_options(const CallOptions& o, const CallShape& shape) const {
  if (shape.op == Op::kPremulSum && o.premul == nullptr) return bad("premul", "is a null pointer");
  if ((o.promises & ~kKnownPromises) != 0)
    return unsupported("rank {}: promises {:#x} are not known", rank_, o.promises & ~kKnownPromises);
  for (const auto& [name, blocks] : {std::pair("min_blocks", o.min_blocks), {"max_blocks", o.max_blocks}})
    if (blocks < 0 || blocks > 1024) return bad(name, fmt::format("is {}: expected 1 to 1024, or 0", blocks));
  if (o.max_blocks != 0 && o.min_blocks > o.max_blocks)
    return bad("max_blocks", fmt::format("is {}, below min_blocks, {}", o.max_blocks, o.min_blocks));
  if (!(o.deadline_s >= 0)) return bad("deadline_s", fmt::format("is {}: not a time", o.deadline_s));
  if (o.match_tags && !is_point_to_point(shape.collective)) return bad("match_tags", "is set, but this is no message");
  if (o.source != nullptr && !(o.match_tags && shape.collective == Collective::kRecv))
    return bad("source", "is set, but only a recv with match_tags stores it");
  if (o.match_tags && backend_->ordinal() >= 0)
    return unsupported(
        "rank {}: match_tags works in host memory, but this is a communicator of device memory: leave it unset, and "
        "make the calls of two ranks in the same order on both",
        rank_);
  return {};
}

Status CommunicatorImpl::read_options(const CallOptions& o, Call& c) const {
  CallShape& s = c.shape;
  if (o.row != nullptr) RONDO_TRY(read_types(*o.row, s));
  RONDO_TRY(check_options(o, s));
  if (o.algorithm != nullptr) {
    if (is_point_to_point(s.collective)) return bad("algorithm", "is set, but send and recv have no algorithms");
    RONDO_TRY_ASSIGN(s.algorithm, host_.planner().find(s.collective, o.algorithm));
  }
  s.promises = o.promises;
  s.min_blocks = static_cast<uint16_t>(o.min_blocks);
  s.max_blocks = static_cast<uint16_t>(o.max_blocks);
  if (o.premul_on_device) c.premul_at = o.premul;
  else if (s.op == Op::kPremulSum) std::memcpy(c.premul, o.premul, dtype_bytes(accumulator_of(s.dtype)));
  c.stream = o.stream;
  c.launch_event = o.launch_event;
  if (o.deadline_s > 0) c.deadline_ns = nanoseconds(o.deadline_s);
  c.tag = o.tag;
  c.source = o.source;
  return {};
}

inline Status CommunicatorImpl::check_buffers(Call& c) const {
  RONDO_TRY(check_count(c.shape));
  const Sizes s = sizes_of(c.shape, rank_, nranks_);
  c.in_bytes = s.in_bytes;
  c.out_bytes = s.out_bytes;
  if (s.in_bytes != 0 && c.in == nullptr) [[unlikely]] return bad("in", "is a null pointer");
  if (s.out_bytes != 0 && c.out == nullptr) [[unlikely]] return bad("out", "is a null pointer");
  if (s.in_bytes == 0 || s.out_bytes == 0) return {};
  const auto in_at = reinterpret_cast<uintptr_t>(c.in) + s.in_offset;
  const auto out_at = reinterpret_cast<uintptr_t>(c.out) + s.out_offset;
  if ((in_at != out_at || !s.may_be_in_place) && overlap(c.in, s.in_bytes, c.out, s.out_bytes)) [[unlikely]]
    return bad("in and out", "overlap, but not as an in-place call may (see rondo.h)");
  return {};
}

Status CommunicatorImpl::check(Call& c) {
  if (!is_of_this_process()) [[unlikely]]
    return check_process();
  if (backend_->is_closed()) [[unlikely]]
    return ready();
  CallShape& s = c.shape;
  c.backend = backend_;
  if (c.deadline_ns == 0) [[likely]]
    c.deadline_ns = deadline_ns_;
  RONDO_TRY(check_type(s));
  if (s.count_elems != 0 || s.counts != nullptr) RONDO_TRY(check_buffers(c));
  if (s.row != 0 && is_point_to_point(s.collective))
    return unsupported("rank {}: send and recv do not convert types", rank_);
  // Checked before sending anything. Otherwise peers could complete an operation that this rank refuses.
  if (transport_->aborted_by()) [[unlikely]]
    return host_.not_started(s, error());
  if (s.promises != 0)
    s.promises = order_matters(s.collective, s.dtype, s.op) ? s.promises & ~RONDO_PROMISE_SAME_BITS_PER_RUN : 0;
  const bool for_devices =
      c.stream != nullptr || c.launch_event != nullptr || c.premul_at != nullptr || (s.min_blocks | s.max_blocks) != 0;
  return for_devices ? backend_->check(c) : Status();
}

Status CommunicatorImpl::prepare(Call& c, const CallOptions* options, Work* work) {
  if (options != nullptr) [[unlikely]] {
    c.shape.matched = options->match_tags;
    RONDO_TRY(is_of_this_process() ? check_type(c.shape) : check_process());
    RONDO_TRY(read_options(*options, c));
  }
  RONDO_TRY(check(c));
  if (options == nullptr && c.shape.op == Op::kPremulSum) [[unlikely]]
    return bad("premul", "is needed: premul_sum scales by it");
  const bool only_checked = options != nullptr && options->check_only;
  if (work != nullptr && !only_checked) {
    work->state_ = c.work = backend_->make_work();
    c.work->callbacks = callbacks_;
  }
  if (group_open() && !only_checked) add_to_group(c);
  if (group_open() || only_checked) c.backend = nullptr;
  return {};
}

Status CommunicatorImpl::start_trace(const std::string& directory, uint64_t num_records) {
  const std::lock_guard driver(host_);
  RONDO_TRY(tracing_->start(directory, num_records));
  Status s = backend_->set_trace(tracing_->trace());
  if (!s.ok()) tracing_->discard();
  return s;
}

Status CommunicatorImpl::stop_trace() {
  RONDO_TRY(backend_->set_trace(nullptr));
  const std::lock_guard driver(host_);
  return tracing_->stop();
}

void CommunicatorImpl::abort() {
  aborted_ = true;
  transport_->raise_abort(rank_);
  backend_->wake();
}

Status CommunicatorImpl::take_device(int ordinal) {
  RONDO_TRY_ASSIGN(device_, make_device_engine(rank_, hosts(), ordinal, *transport_, settings_, kernels_for(settings_),
                                               [this](std::string_view mine, std::vector<std::string>* all) {
                                                 return control_->gather(mine, all);
                                               }));
  backend_ = device_.get();
  tracing_->set_device_calls([this] { return device_->look_at_calls(); });
  device_->set_failure_hook([this](const Status& status, std::vector<FlightCurrent> calls) {
    tracing_->device_failing(status, std::move(calls));
  });
  if (StepTrace* trace = tracing_->trace(); trace != nullptr) tracing_->complain(device_->set_trace(trace));
  return {};
}

Status CommunicatorImpl::error() {
  return queue_.has_failed() && !backend_->is_closed() ? queue_.failure() : backend_->error();
}

ControlGather CommunicatorImpl::control_for(std::string_view call) {
  return {control_mutex_, [this, name = std::string(call)](std::string_view mine, std::vector<std::string>* all) {
            return in_call(name, control_->gather(mine, all));
          }};
}

Expected<void*> CommunicatorImpl::alloc(uint64_t bytes) {
  constexpr uint64_t kMost = UINT64_MAX / 2;
  if (bytes == 0) return bad("bytes", "is 0");
  if (bytes > kMost) return bad("bytes", fmt::format("is {}: more than a process can address", bytes));
  if (backend_->is_closed()) return ready();
  return backend_->alloc((bytes + 4095) / 4096 * 4096, control_for("alloc"));
}

Status CommunicatorImpl::free(void* ptr) { return backend_->free(ptr, control_for("free")); }

Status CommunicatorImpl::register_memory(void* ptr, uint64_t bytes) {
  if (backend_->is_closed()) return ready();
  if (ptr == nullptr) return bad("ptr", "is a null pointer");
  if (bytes == 0) return bad("bytes", "is 0");
  return in_call("register_memory", backend_->register_memory(ptr, bytes, control_for("register_memory")));
}

Status CommunicatorImpl::deregister_memory(void* ptr) {
  if (ptr == nullptr) return bad("ptr", "is a null pointer");
  return in_call("deregister_memory", backend_->deregister_memory(ptr, control_for("deregister_memory")));
}

Status CommunicatorImpl::check_planned(const CallShape& r) const {
  if (is_point_to_point(r.collective))
    return unsupported(
        "rank {}: collective is {}: send and recv have no plan and no "
        "forecast",
        rank_, collective_name(r.collective));
  RONDO_TRY(check_type(r));
  return check_count(r);
}

Expected<double> CommunicatorImpl::forecast_us(const CallShape& shape, const CallOptions* options) {
  Call c{shape};
  RONDO_TRY(check_planned(shape));
  if (options != nullptr) {
    if (options->row != nullptr && !row_supported(*options->row))
      return bad("row", "is not a supported combination of types (docs/types.md)");
    CallOptions known = *options;
    constexpr uint64_t kAnyScale = 0;
    if (known.premul == nullptr) known.premul = &kAnyScale;
    RONDO_TRY(read_options(known, c));
  }
  return backend_->forecast_us(c.shape);
}

Expected<std::string> CommunicatorImpl::explain_plan(const CallShape& shape) {
  RONDO_TRY(check_planned(shape));
  return backend_->explain(shape);
}

}  // namespace rondo
