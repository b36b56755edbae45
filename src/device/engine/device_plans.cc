// Makes a DevicePlan from a call's shape: plans, compiles and lowers it (or puts it into stream order), and connects it
// with the other ranks.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/engine/device_engine.h"
#include "device/engine/images.h"

namespace rondo {
namespace {

constexpr uint64_t kMaxConnectWaitNs = 100'000;  // between two polls for the others' halves of connections

}  // namespace

// Assigns ends to places in the tables, and makes this rank's halves of them.
class DeviceEngine::Ports final : public PortIndex {
 public:
  Ports(DeviceEngine& engine, DevicePlan& plan) : e_(engine), plan_(plan) {}
  Expected<uint16_t> reader(const ReadPort& port, ConnectionForm form) override {
    return place(port.key, form, nullptr);
  }
  Expected<uint16_t> writer(const WritePort& port, ConnectionForm form) override {
    return place(port.key, form, &port.counters);
  }

 private:
  // readers: counter indices of a writing end; nullptr: a reading end.
  Expected<uint16_t> place(ConnectionKey key, ConnectionForm form, const std::vector<uint32_t>* readers) {
    key.inline_only = false;  // the form contains it
    form = e_.transport_.form_of(key, form);
    const bool writes = readers != nullptr;
    uint32_t index = 0;  // in the table of this kind of ends
    size_t i = 0;
    for (; i < e_.ends_.size(); ++i) {
      if (e_.ends_[i].writes != writes) continue;
      if (e_.ends_[i].key.key == key && e_.ends_[i].key.form == form) break;
      ++index;
    }
    if (i == e_.ends_.size()) {
      if (index == (writes ? e_.tables_.write_stride : e_.tables_.read_stride))
        return make_error(StatusCode::kExhausted,
                          "rank {}: the communicator has {} connections on its device, the maximum", e_.rank_, index);
      e_.ends_.push_back({{key, form}, writes ? key.reader : key.writer, false, writes, index, {}, {}});
      if (writes) e_.ends_.back().readers = *readers;
      RONDO_TRY(e_.transport_.find_ends({key, form}).status());
    }
    std::vector<uint32_t>& used = plan_.ends;
    if (std::find(used.begin(), used.end(), i) == used.end()) used.push_back(static_cast<uint32_t>(i));
    return static_cast<uint16_t>(index);
  }
  DeviceEngine& e_;
  DevicePlan& plan_;
};

Expected<std::shared_ptr<DevicePlan>> DeviceEngine::plan(const CallShape& request) {
  const bool may_be_direct = transport_.may_be_direct();
  if (const auto* known = plans_.find(request, may_be_direct)) return *known;
  auto made = std::make_shared<DevicePlan>();
  made->request = request;
  made->may_be_direct = may_be_direct;
  if (is_point_to_point(request.collective)) {
    made->how = device_planner_.message(request.count_elems * dtype_bytes(request.dtype),
                                        transport_.crosses({rank_, request.root}));
    RONDO_TRY(compile_plan(*made));
    made->reason =
        fmt::format("point to point, {} channels, messages of {} B", made->how.num_channels, made->how.message_bytes);
  } else {
    RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
    Status refused;
    for (const DeviceCandidate& c : found) {  // the first that a block supports; equal on all ranks
      made->how = c;
      refused = compile_plan(*made);
      if (refused.ok() || refused.code() != StatusCode::kUnsupported) break;
    }
    RONDO_TRY(refused);
    const Algorithm* const algorithm = made->how.algorithm;
    made->reason = device_planner_.describe(made->how) + made->reason;
    const auto next = std::find_if(found.begin(), found.end(), [&](const auto& c) { return c.algorithm != algorithm; });
    if (next != found.end()) made->reason += "; next best " + device_planner_.describe(*next);
  }
  made->main.program->reason = made->reason;
  return *plans_.add(std::move(made));
}

Expected<std::unique_ptr<Program>> DeviceEngine::compile_program(const CallShape& r, const DeviceCandidate& how) {
  const Algorithm* const algorithm = how.algorithm;
  ProgramShape shape;
  shape.operation = operation_shape(r, algorithm != nullptr ? algorithm_index(*algorithm) : 0);
  // LL and LL128 use the host's inline program, with a whole message in a slot.
  shape.protocol = how.protocol == DeviceProtocol::kSimple ? Protocol::kSimple : Protocol::kInline;
  shape.message_bytes = how.message_bytes;
  shape.counts = r.counts.get();
  const Rank root = collective_is_rooted(r.collective) ? r.root : 0;
  if (algorithm != nullptr && algorithm->direct && nranks_ > 1) {
    shape.direct = true;
    shape.pushes = planner_.profile(*algorithm, r.root).pushes;
  }
  const RankSchedule schedule = algorithm != nullptr ? record_rank(*algorithm, rank_, planner_.hosts(), root)
                                                     : record_point_to_point(r.collective, rank_, nranks_, r.root);
  return compile(schedule, shape, ports_, host_kernels_);
}

Status DeviceEngine::compile_plan(DevicePlan& plan) {
  plan.reason.clear();
  plan.fallback = {};
  RONDO_TRY_ASSIGN(plan.main.program, compile_program(plan.request, plan.how));
  plan.num_lanes = static_cast<uint32_t>(std::max<size_t>(1, plan.main.program->lanes.size()));
  plan.num_channels = plan.how.num_channels;
  if (world_.engine == EngineKind::kStream) return order_plan(plan);
  return lower_plan(plan);
}

// Adds the program for unreachable buffers. Both programs have the same channels, so that each channel can decide
// separately.
Status DeviceEngine::add_fallback(DevicePlan& plan) {
  if (entry_steps(*plan.main.program) == 0)
    return unsupported(
        "{}: a direct algorithm whose buffers may be unreachable must have one lane, which "
        "begins with credits to and from all ranks",
        plan.how.algorithm->name);
  RONDO_TRY_ASSIGN(const auto found, device_planner_.fallbacks(plan.request, plan.how));
  Status refused;
  for (const DeviceCandidate& c : found) {  // as in plan()
    const std::vector<uint32_t> ends = plan.ends;
    RONDO_TRY_ASSIGN(plan.fallback.program, compile_program(plan.request, c));
    Ports ports(*this, plan);
    refused = lower_program(plan.fallback, c, c.num_channels, ports);
    if (refused.ok()) {
      RONDO_CHECK(interpreter_name(*plan.fallback.program) == interpreter_name(*plan.main.program));
      plan.num_lanes = static_cast<uint32_t>(std::max<size_t>(plan.num_lanes, plan.fallback.program->lanes.size()));
      device_planner_.limit_channels(plan.request, c.num_channels, plan.how);
      plan.num_channels = c.num_channels;
      plan.reason = fmt::format("; {} when a rank's buffers cannot be reached", device_planner_.describe(c));
      return {};
    }
    plan.ends = ends;
    if (refused.code() != StatusCode::kUnsupported) break;
  }
  plan.fallback = {};
  return refused;
}

Status DeviceEngine::lower_plan(DevicePlan& plan) {
  plan.ends.clear();
  if (plan.main.program->direct && !transport_.reaches_everything()) RONDO_TRY(add_fallback(plan));
  Ports ports(*this, plan);
  RONDO_TRY(lower_program(plan.main, plan.how, plan.num_channels, ports));
  RONDO_TRY_ASSIGN(plan.function, kernels_->find(collective_images(), interpreter_name(*plan.main.program)));
  return {};
}

Status DeviceEngine::lower_program(LoweredProgram& to, const DeviceCandidate& how, uint32_t num_channels,
                                   Ports& ports) {
  DeviceShape shape;
  shape.num_channels = num_channels;
  shape.short_messages = how.protocol == DeviceProtocol::kSimple ? DeviceProtocol::kLl : how.protocol;
  shape.message_bytes = how.message_bytes;
  RONDO_TRY_ASSIGN(const Lowered lowered, lower(*to.program, shape, ports));
  std::memcpy(static_cast<void*>(&to.header), lowered.program.data(), sizeof to.header);
  to.counts = lowered.counts;
  RONDO_TRY_ASSIGN(to.on_device, programs_.find_or_upload(lowered.program));
  return {};
}

// Makes an end ready if the other half is there: in all channels, in the kernel's form.
Status DeviceEngine::make_ready(End& end) {
  if (world_.engine == EngineKind::kStream) {
    RONDO_TRY_ASSIGN(const auto slots, transport_.stream_slots(end.key.key, end.other, world_.stream_slot_bytes));
    if (slots) end.slots = *slots;
    end.ready = slots.has_value();
    return {};
  }
  RONDO_TRY_ASSIGN(const auto found, transport_.find_ends(end.key));
  if (!found) return {};
  const auto& [key, form] = end.key;
  const bool words = form == ConnectionForm::kWords || form == ConnectionForm::kWideLines;
  const uint32_t slot_bytes = words ? DeviceLayout::kSlotBytes : 0,
                 num_readers = static_cast<uint32_t>(end.readers.size());
  const uint32_t* readers = nullptr;
  if (end.writes) {
    RONDO_TRY_ASSIGN(const std::byte* const at, transport_.take_memory(num_readers * sizeof(uint32_t)));
    readers = reinterpret_cast<const uint32_t*>(at);
    RONDO_TRY(put(readers, std::span<const uint32_t>(end.readers)));
  }
  for (uint64_t c = 0; c < world_.layout.max_channels; ++c) {
    const FifoView view =
        world_.layout.view(form, found->inbox, found->counters, found->readers, static_cast<uint32_t>(c));
    if (end.writes) {
      DeviceWriteEnd w{};
      w.view = view;
      w.slot_bytes = slot_bytes;
      w.num_readers = num_readers;
      w.readers = readers;
      RONDO_TRY(put(tables_.writes + c * tables_.write_stride + end.index, {&w, 1}));
    } else {
      const DeviceReadEnd r{view, slot_bytes, transport_.counter_index(key, rank_), 0, key.writer};
      RONDO_TRY(put(tables_.reads + c * tables_.read_stride + end.index, {&r, 1}));
    }
  }
  end.ready = true;
  return {};
}

// Returns true if all connections of the plan are ready.
Expected<bool> DeviceEngine::connect(DevicePlan& plan) {
  if (plan.connected) return true;
  bool all = true;
  for (const uint32_t i : plan.ends) {
    if (!ends_[i].ready) RONDO_TRY(make_ready(ends_[i]));
    all = all && ends_[i].ready;
  }
  plan.connected = all;
  return all;
}

Status DeviceEngine::connect_all(std::span<const Item> items) {
  const uint64_t since = monotonic_ns();
  for (uint64_t wait_ns = 1000;; wait_ns = std::min(wait_ns * 2, kMaxConnectWaitNs)) {
    const Item* missing = nullptr;
    for (const Item& item : items) {
      DeviceEngine& e = *item.engine;
      RONDO_TRY(e.error());
      cuda::CurrentContext current(e.transport_.context());
      const auto connected = e.connect(*item.plan);
      if (!connected.ok()) {
        RONDO_TRY(e.lost_peer_soon());  // memory of an ended process cannot be opened
        return connected.status();
      }
      if (!*connected && missing == nullptr) missing = &item;
    }
    if (missing == nullptr) return {};
    const DeviceEngine& e = *missing->engine;
    const DevicePlan& plan = *missing->plan;
    const double waited_s = static_cast<double>(monotonic_ns() - since) * 1e-9;
    if (waited_s > e.connect_deadline_s_) {
      const auto late = std::find_if(plan.ends.begin(), plan.ends.end(), [&](uint32_t i) { return !e.ends_[i].ready; });
      const Rank whom = e.ends_[*late].other;
      return make_error(
          StatusCode::kTimeout,
          "rank {}: waited {:.1f} s (RONDO_INIT_TIMEOUT_S or init_deadline_s) for rank {} to make its end of a "
          "connection: has it called {}?",
          e.rank_, waited_s, whom, collective_name(plan.request.collective));
    }
    RONDO_TRY(e.lost_peer());
    timespec pause{0, static_cast<long>(wait_ns)};
    nanosleep(&pause, nullptr);
  }
}

// The system reports an ended process a moment after its memory is gone.
Status DeviceEngine::lost_peer_soon() const {
  for (int tries = 0; tries < 100; ++tries) {
    RONDO_TRY(lost_peer());
    timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  }
  return {};
}

Status DeviceEngine::lost_peer() const {
  const auto lost = transport_.find_lost();
  if (!lost || transport_.departed(lost->rank)) return {};  // a rank that has left on purpose had done its part
  return make_error(StatusCode::kPeerLost, "rank {}: {}", rank_, lost->how);
}

}  // namespace rondo
