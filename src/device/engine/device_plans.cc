// Makes a DevicePlan from a call's shape: plans, compiles and lowers it (or puts it into stream order), and connects it
// with the other ranks.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "device/engine/device_engine.h"
#include "device/engine/images.h"

namespace rondo {
namespace {

constexpr uint64_t kMaxConnectWaitNs = 100'000;  // between two polls for the others' halves of connections

ConnectionForm form_of(DeviceEnd end) {
  switch (end) {
    case DeviceEnd::kCredit: return ConnectionForm::kLines;
    case DeviceEnd::kSimple: return ConnectionForm::kRing;
    case DeviceEnd::kLl: return ConnectionForm::kWords;
    case DeviceEnd::kLl128: return ConnectionForm::kWideLines;
  }
  return ConnectionForm::kRing;
}

}  // namespace

// Assigns ends to places in the tables, and makes this rank's halves of them.
class DeviceEngine::Ports final : public PortIndex {
 public:
  Ports(DeviceEngine& engine, DevicePlan& plan) : e_(engine), plan_(plan) {}
  Expected<uint16_t> reader(const ReadPort& port, DeviceEnd end) override {
    return place(e_.reads_, plan_.reads, e_.tables_.read_stride, {port.key, form_of(end)}, {});
  }
  Expected<uint16_t> writer(const WritePort& port, DeviceEnd end) override {
    return place(e_.writes_, plan_.writes, e_.tables_.write_stride, {port.key, form_of(end)}, port.counters);
  }

 private:
  Expected<uint16_t> place(std::vector<End>& ends, std::vector<uint32_t>& used, uint32_t most, DeviceKey key,
                           const std::vector<uint32_t>& readers) {
    key.key.inline_only = false;  // the form contains it
    uint32_t i = 0;
    while (i < ends.size() && !(ends[i].key.key == key.key && ends[i].key.form == key.form)) ++i;
    if (i == ends.size()) {
      if (i == most)
        return Status(
            StatusCode::kExhausted,
            fmt::format("rank {}: the communicator has {} connections on its device, the maximum", e_.rank_, i));
      ends.push_back({key, readers, false});
      RONDO_TRY(e_.transport_.find_ends(key).status());
    }
    if (std::find(used.begin(), used.end(), i) == used.end()) used.push_back(i);
    return static_cast<uint16_t>(i);
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
    made->how = device_planner_.message(request.count_elems * dtype_bytes(request.dtype));
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
  made->program->reason = made->reason;
  // The device memory of a plan that goes stays for captured launches: it lives as long as the communicator.
  return *plans_.add(std::move(made));
}

Expected<std::unique_ptr<Program>> DeviceEngine::compile_program(const CallShape& r, const DeviceCandidate& how) {
  const Algorithm* const algorithm = how.algorithm;
  ProgramShape shape;
  shape.operation = operation_shape(r, algorithm != nullptr ? algorithm_index(*algorithm) : 0);
  // The host's inline program becomes words or lines: whole messages of a slot.
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
  plan.fallback.reset();
  RONDO_TRY_ASSIGN(plan.program, compile_program(plan.request, plan.how));
  plan.num_lanes = static_cast<uint32_t>(std::max<size_t>(1, plan.program->lanes.size()));
  plan.num_channels = plan.how.num_channels;
  if (world_.engine == DeviceEngineKind::kStream) return order_plan(plan);
  return lower_plan(plan);
}

// Adds the program for unreachable buffers. Both programs have the same channels, so that each channel can decide
// separately.
Status DeviceEngine::add_fallback(DevicePlan& plan) {
  if (entry_steps(*plan.program) == 0)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: a direct algorithm whose buffers may be unreachable must have one lane, which "
                              "begins with credits to and from all ranks",
                              plan.how.algorithm->name));
  RONDO_TRY_ASSIGN(const auto found, device_planner_.fallbacks(plan.request, plan.how));
  Status refused;
  for (const DeviceCandidate& c : found) {  // as in plan()
    const std::vector<uint32_t> reads = plan.reads, writes = plan.writes;
    RONDO_TRY_ASSIGN(plan.fallback, compile_program(plan.request, c));
    Ports ports(*this, plan);
    const auto lowered = lower_program(*plan.fallback, c, c.num_channels, ports, plan.header_fallback);
    refused = lowered.status();
    if (lowered.ok()) {
      RONDO_CHECK(interpreter_name(*plan.fallback) == interpreter_name(*plan.program));
      plan.lowered_fallback = *lowered;
      plan.num_lanes = static_cast<uint32_t>(std::max<size_t>(plan.num_lanes, plan.fallback->lanes.size()));
      plan.num_channels = plan.how.num_channels = c.num_channels;
      plan.reason = fmt::format("; {} when a rank's buffers cannot be reached", device_planner_.describe(c));
      return {};
    }
    plan.reads = reads;
    plan.writes = writes;
    if (refused.code() != StatusCode::kUnsupported) break;
  }
  plan.fallback.reset();
  return refused;
}

Status DeviceEngine::lower_plan(DevicePlan& plan) {
  plan.reads.clear();
  plan.writes.clear();
  plan.lowered_fallback = nullptr;
  if (plan.program->direct && !transport_.reaches_everything()) RONDO_TRY(add_fallback(plan));
  Ports ports(*this, plan);
  RONDO_TRY_ASSIGN(plan.lowered, lower_program(*plan.program, plan.how, plan.num_channels, ports, plan.header));
  plan.kernel = interpreter_name(*plan.program);
  RONDO_TRY_ASSIGN(plan.function, kernels_->find(collective_images(), plan.kernel));
  return {};
}

Expected<std::byte*> DeviceEngine::lower_program(const Program& program, const DeviceCandidate& how,
                                                 uint32_t num_channels, Ports& ports, DeviceProgram& header) {
  DeviceShape shape;
  shape.num_channels = num_channels;
  shape.short_messages = how.protocol == DeviceProtocol::kSimple ? DeviceProtocol::kLl : how.protocol;
  shape.message_bytes = how.message_bytes;
  shape.lap_messages = kRingMessages;
  RONDO_TRY_ASSIGN(const std::vector<std::byte> bytes, lower(program, shape, ports));
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  RONDO_TRY_ASSIGN(std::byte* const to, transport_.take_memory(bytes.size()));
  RONDO_TRY(cuda::upload(transport_.setup_stream(), reinterpret_cast<cuda::DevicePtr>(to), bytes.data(), bytes.size()));
  return to;
}

// One end, in all channels, in the kernel's form.
Status DeviceEngine::write_end(bool writer, uint32_t index) {
  End& end = (writer ? writes_ : reads_)[index];
  RONDO_TRY_ASSIGN(const auto found, transport_.find_ends(end.key));
  if (!found) return {};
  const DeviceLayout& layout = world_.layout;
  const ConnectionForm form = end.key.form;
  const ConnectionKey& key = end.key.key;
  const bool words = form == ConnectionForm::kWords || form == ConnectionForm::kWideLines;
  uint32_t* readers = nullptr;
  if (writer) {
    RONDO_TRY_ASSIGN(std::byte * at, transport_.take_memory(end.readers.size() * sizeof(uint32_t)));
    readers = reinterpret_cast<uint32_t*>(at);
    RONDO_TRY(cuda::upload(transport_.setup_stream(), reinterpret_cast<cuda::DevicePtr>(at), end.readers.data(),
                           end.readers.size() * sizeof(uint32_t)));
  }
  for (uint32_t c = 0; c < layout.max_channels; ++c) {
    const FifoView view = layout.view(form, found->inbox, found->counters, found->readers, c);
    const void* from = nullptr;
    size_t bytes = 0;
    cuda::DevicePtr to = 0;
    DeviceWriteEnd w{};
    DeviceReadEnd r{};
    if (writer) {
      w.view = view;
      w.slot_bytes = words ? DeviceLayout::kSlotBytes : 0;
      w.num_readers = static_cast<uint32_t>(end.readers.size());
      w.readers = readers;
      from = &w;
      bytes = sizeof w;
      to = reinterpret_cast<cuda::DevicePtr>(tables_.writes + uint64_t{c} * tables_.write_stride + index);
    } else {
      r.view = view;
      r.slot_bytes = words ? DeviceLayout::kSlotBytes : 0;
      r.counter = transport_.counter_index(key, rank_);
      r.peer = key.writer;
      from = &r;
      bytes = sizeof r;
      to = reinterpret_cast<cuda::DevicePtr>(tables_.reads + uint64_t{c} * tables_.read_stride + index);
    }
    RONDO_TRY(cuda::upload(transport_.setup_stream(), to, from, bytes));
  }
  end.ready = true;
  return {};
}

// Returns true if all connections of the plan are ready.
Expected<bool> DeviceEngine::connect(DevicePlan& plan) {
  if (plan.connected) return true;
  bool all = true;
  for (const bool writer : {false, true})
    for (const uint32_t i : writer ? plan.writes : plan.reads) {
      if (!(writer ? writes_ : reads_)[i].ready) RONDO_TRY(write_end(writer, i));
      all = all && (writer ? writes_ : reads_)[i].ready;
    }
  for (const uint32_t i : plan.slots) {
    SlotUse& use = slots_[i];
    if (!use.ready) {
      RONDO_TRY_ASSIGN(const auto found,
                       transport_.stream_slots(use.key, use.reader, kStreamSlots, world_.stream_slot_bytes));
      if (found) use.slots = *found;
      use.ready = found.has_value();
    }
    all = all && use.ready;
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
      Rank whom = -1;
      for (const uint32_t i : plan.reads)
        if (!e.reads_[i].ready && whom < 0) whom = e.reads_[i].key.key.writer;
      for (const uint32_t i : plan.writes)
        if (!e.writes_[i].ready && whom < 0) whom = e.writes_[i].key.key.reader;
      for (const uint32_t i : plan.slots)
        if (!e.slots_[i].ready && whom < 0) whom = e.slots_[i].reader;
      return Status(
          StatusCode::kTimeout,
          fmt::format(
              "rank {}: waited {:.1f} s (RONDO_INIT_TIMEOUT_S or init_deadline_s) for rank {} to make its end of a "
              "connection: has it called {}?",
              e.rank_, waited_s, whom, collective_name(plan.request.collective)));
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
  return Status(StatusCode::kPeerLost, fmt::format("rank {}: {}", rank_, lost->how));
}

}  // namespace rondo
