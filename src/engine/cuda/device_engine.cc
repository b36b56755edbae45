#include "engine/cuda/device_engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace rondo {
namespace {

constexpr uint32_t kBlockThreads = 512;
constexpr size_t kMaxPlans = 1024;
constexpr uint64_t kMaxConnectWaitNs = 100'000;  // between two looks for the others' halves of connections

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

ConnectionForm form_of(DeviceEnd end) {
  switch (end) {
    case DeviceEnd::kCredit: return ConnectionForm::kLines;
    case DeviceEnd::kSimple: return ConnectionForm::kRing;
    case DeviceEnd::kLl: return ConnectionForm::kWords;
    case DeviceEnd::kLl128: return ConnectionForm::kWideLines;
  }
  return ConnectionForm::kRing;
}

bool captures(cuda::Stream stream) {
  int status = cuda::kCaptureNone;
  const cuda::Driver* d = cuda::driver();
  if (d->stream_capture_info(stream, &status, nullptr, nullptr, nullptr, nullptr) != cuda::kSuccess) return false;
  return status == cuda::kCaptureActive;
}

// Setting up copies and allocates, also while the caller's stream is being captured: none of that is part of the graph.
class OutsideCapture {
 public:
  OutsideCapture() { cuda::driver()->thread_exchange_capture_mode(&mode_); }
  ~OutsideCapture() { cuda::driver()->thread_exchange_capture_mode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  int mode_ = 2;  // relaxed
};

template <class T>
void end_operation(const std::shared_ptr<T>& op, const Status& status) {
  if (op == nullptr) return;
  op->status = status;
  op->done.store(true, std::memory_order_release);
}

}  // namespace

// Gives ends their places in the tables, and makes this rank's halves of them.
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
    key.key.inline_only = false;  // the form says it
    uint32_t i = 0;
    while (i < ends.size() && !(ends[i].key.key == key.key && ends[i].key.form == key.form)) ++i;
    if (i == ends.size()) {
      if (i == most)
        return Status(
            StatusCode::kExhausted,
            fmt::format("rank {}: the communicator has {} connections on its device, as many as it may", e_.rank_, i));
      ends.push_back({key, readers, false});
      RONDO_TRY(e_.transport_.find_ends(key).status());
    }
    if (std::find(used.begin(), used.end(), i) == used.end()) used.push_back(i);
    return static_cast<uint16_t>(i);
  }
  DeviceEngine& e_;
  DevicePlan& plan_;
};

DeviceEngine::DeviceEngine(Rank rank, int nranks, const DeviceWorld& world, const PlannerSettings& settings,
                           CudaTransport& transport, const KernelTable& host_kernels, double connect_deadline_s)
    : rank_(rank),
      nranks_(nranks),
      world_(world),
      connect_deadline_s_(connect_deadline_s),
      transport_(transport),
      ports_(rank, transport),
      host_kernels_(host_kernels),
      planner_(rank, nranks, settings, ports_, host_kernels),
      device_planner_(nranks, world, planner_),
      kernels_(KernelLoader::of(transport.context())) {}

Expected<std::unique_ptr<DeviceEngine>> DeviceEngine::create(Rank rank, int nranks, const DeviceWorld& world,
                                                             const PlannerSettings& settings, CudaTransport& transport,
                                                             const KernelTable& host_kernels,
                                                             double connect_deadline_s) {
  std::unique_ptr<DeviceEngine> e(
      new DeviceEngine(rank, nranks, world, settings, transport, host_kernels, connect_deadline_s));
  RONDO_TRY(e->start());
  return e;
}

Status DeviceEngine::start() {
  cuda::CurrentContext current(transport_.context());
  RONDO_TRY(current.status());
  RONDO_TRY_ASSIGN(control_, cuda::PinnedMemory::make(sizeof(DeviceControl)));
  RONDO_TRY_ASSIGN(serial_, cuda::OwnedEvent::make());
  RONDO_TRY_ASSIGN(graph_serial_, cuda::OwnedEvent::make());
  if (world_.engine == DeviceEngineKind::kInterpreter) {
    const uint32_t channels = world_.layout.max_channels;
    tables_.rank = static_cast<uint32_t>(rank_);
    tables_.num_ranks = static_cast<uint32_t>(nranks_);
    tables_.max_channels = channels;
    tables_.write_stride = tables_.read_stride = static_cast<uint32_t>(32 * nranks_ + 64);
    const uint64_t header = round_up(sizeof(DeviceComm), 256);
    const uint64_t writes = round_up(uint64_t{channels} * tables_.write_stride * sizeof(DeviceWriteEnd), 256);
    const uint64_t reads = round_up(uint64_t{channels} * tables_.read_stride * sizeof(DeviceReadEnd), 256);
    const uint64_t peers = round_up(uint64_t{channels} * tables_.num_ranks * sizeof(PeerBuffers), 256);
    const uint64_t lanes = round_up(uint64_t{channels} * DeviceProgram::kMaxLanes * sizeof(LaneProgress), 256);
    const uint64_t meetings = uint64_t{channels} * 64;
    const uint64_t total = header + writes + reads + peers + lanes + meetings;
    RONDO_TRY_ASSIGN(comm_, cuda::DeviceMemory::make(total));
    std::byte* at = comm_.as() + header;
    tables_.writes = reinterpret_cast<DeviceWriteEnd*>(at);
    tables_.reads = reinterpret_cast<DeviceReadEnd*>(at += writes);
    tables_.peers = reinterpret_cast<PeerBuffers*>(at += reads);
    tables_.lanes = reinterpret_cast<LaneProgress*>(at += peers);
    tables_.meetings = reinterpret_cast<uint64_t*>(at += lanes);
    const cuda::Driver* d = cuda::driver();
    RONDO_TRY_ASSIGN(auto stream, cuda::OwnedStream::make());
    RONDO_TRY(cuda::check(d->memset_d8_async(comm_.get(), 0, total, stream.get()), "cuMemsetD8Async"));
    RONDO_TRY(cuda::check(d->stream_synchronize(stream.get()), "cuStreamSynchronize"));
    RONDO_TRY(cuda::upload(stream.get(), comm_.get(), &tables_, sizeof tables_));
  }
  watcher_ = std::thread([this] { watch(); });
  return {};
}

DeviceEngine::~DeviceEngine() {
  (void)drain();
  {
    const std::lock_guard lock(watch_mutex_);
    stop_ = true;
  }
  watch_changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  cuda::CurrentContext current(transport_.context());
  {
    // Whatever could not be waited for ends here.
    const std::lock_guard lock(watch_mutex_);
    for (Outstanding& o : outstanding_)
      end_operation(o.op, Status(StatusCode::kAborted, "its communicator was destroyed"));
    outstanding_.clear();
  }
}

// --- plans

Expected<std::shared_ptr<DevicePlan>> DeviceEngine::plan(const PlanRequest& request) {
  for (auto it = plans_.begin(); it != plans_.end(); ++it)
    if ((*it)->request == request) {
      plans_.splice(plans_.begin(), plans_, it);
      return plans_.front();
    }
  auto made = std::make_shared<DevicePlan>();
  made->request = request;
  if (request.counts != nullptr) {
    made->counts = std::make_unique<VariableCounts>(*request.counts);
    made->request.counts = made->counts.get();
  }
  const Algorithm* algorithm = nullptr;
  if (is_point_to_point(request.collective)) {
    made->how = device_planner_.message(request.count_elems * dtype_bytes(request.dtype));
    made->reason =
        fmt::format("a message, {} channels, {} B at a time", made->how.num_channels, made->how.message_bytes);
    RONDO_TRY(compile_plan(*made, nullptr));
  } else {
    RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
    Status refused;
    for (const DeviceCandidate& c : found) {  // the first that a block can hold; equal on all ranks but for its place
      made->how = c;
      refused = compile_plan(*made, c.algorithm);
      if (refused.ok() || refused.code() != StatusCode::kUnsupported) break;
    }
    RONDO_TRY(refused);
    algorithm = made->how.algorithm;
    made->reason = device_planner_.describe(made->how);
    const auto next = std::find_if(found.begin(), found.end(), [&](const auto& c) { return c.algorithm != algorithm; });
    if (next != found.end()) made->reason += "; next best " + device_planner_.describe(*next);
  }
  made->program->reason = made->reason;
  plans_.push_front(made);
  // The oldest goes; its device memory stays for launches that were captured (it lives with the communicator).
  if (plans_.size() > kMaxPlans) plans_.pop_back();
  return made;
}

Status DeviceEngine::compile_plan(DevicePlan& plan, const Algorithm* algorithm) {
  const PlanRequest& r = plan.request;
  ProgramShape shape;
  shape.operation = operation_shape(r, algorithm != nullptr ? algorithm_index(*algorithm) : 0);
  // A host's inline program becomes one of words or lines: whole messages of a slot.
  shape.protocol = plan.how.protocol == DeviceProtocol::kSimple ? Protocol::kSimple : Protocol::kInline;
  shape.message_bytes = plan.how.message_bytes;
  shape.counts = r.counts;
  const Rank root = collective_is_rooted(r.collective) ? r.root : 0;
  if (algorithm != nullptr && algorithm->direct && nranks_ > 1) {
    shape.direct = true;
    shape.pushes = planner_.profile(*algorithm, r.root).pushes;
  }
  const RankSchedule schedule = algorithm != nullptr ? record_rank(*algorithm, rank_, nranks_, root)
                                                     : record_point_to_point(r.collective, rank_, nranks_, r.root);
  RONDO_TRY_ASSIGN(plan.program, compile(schedule, shape, ports_, host_kernels_));
  plan.num_lanes = static_cast<uint32_t>(std::max<size_t>(1, plan.program->lanes.size()));
  plan.num_channels = plan.how.num_channels;
  return world_.engine == DeviceEngineKind::kStream ? order_plan(plan) : lower_plan(plan);
}

Status DeviceEngine::lower_plan(DevicePlan& plan) {
  plan.reads.clear();
  plan.writes.clear();
  DeviceShape shape;
  shape.num_channels = plan.num_channels;
  shape.short_messages = plan.how.protocol == DeviceProtocol::kSimple ? DeviceProtocol::kLl : plan.how.protocol;
  shape.message_bytes = plan.how.message_bytes;
  shape.lap_messages = kRingMessages;
  Ports ports(*this, plan);
  RONDO_TRY_ASSIGN(const std::vector<std::byte> bytes, lower(*plan.program, shape, ports));
  plan.kernel = plan.how.inlined.empty() ? interpreter_name(*plan.program) : plan.how.inlined;
  RONDO_TRY_ASSIGN(plan.function, kernels_->find(plan.kernel));
  RONDO_TRY_ASSIGN(plan.lowered, transport_.take_memory(bytes.size()));
  return cuda::upload(transport_.setup_stream(), reinterpret_cast<cuda::DevicePtr>(plan.lowered), bytes.data(),
                      bytes.size());
}

// --- connections

// One end, in all channels, as the kernel finds it.
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
      w.port = {key.reader, key.tag, key.group};
      from = &w;
      bytes = sizeof w;
      to = reinterpret_cast<cuda::DevicePtr>(tables_.writes + uint64_t{c} * tables_.write_stride + index);
    } else {
      r.view = view;
      r.slot_bytes = words ? DeviceLayout::kSlotBytes : 0;
      r.counter = transport_.counter_index(key, rank_);
      r.port = {key.writer, key.tag, key.group};
      from = &r;
      bytes = sizeof r;
      to = reinterpret_cast<cuda::DevicePtr>(tables_.reads + uint64_t{c} * tables_.read_stride + index);
    }
    RONDO_TRY(cuda::upload(transport_.setup_stream(), to, from, bytes));
  }
  end.ready = true;
  return {};
}

// True when all connections of the plan stand.
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

Status DeviceEngine::connect_all(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans) {
  const uint64_t since = monotonic_ns();
  for (uint64_t wait_ns = 1000;; wait_ns = std::min(wait_ns * 2, kMaxConnectWaitNs)) {
    const DeviceEngine* missing = nullptr;
    size_t which = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      DeviceEngine& e = *entries[i].engine;
      RONDO_TRY(e.error());
      cuda::CurrentContext current(e.transport_.context());
      const auto connected = e.connect(*plans[i]);
      if (!connected.ok()) {
        RONDO_TRY(e.lost_peer_soon());  // memory of a process that is gone cannot be opened
        return connected.status();
      }
      const bool all = *connected;
      if (!all && missing == nullptr) {
        missing = &e;
        which = i;
      }
    }
    if (missing == nullptr) return {};
    const double waited_s = static_cast<double>(monotonic_ns() - since) * 1e-9;
    if (waited_s > missing->connect_deadline_s_) {
      Rank whom = -1;
      for (const uint32_t i : plans[which]->reads)
        if (!missing->reads_[i].ready && whom < 0) whom = missing->reads_[i].key.key.writer;
      for (const uint32_t i : plans[which]->writes)
        if (!missing->writes_[i].ready && whom < 0) whom = missing->writes_[i].key.key.reader;
      for (const uint32_t i : plans[which]->slots)
        if (!missing->slots_[i].ready && whom < 0) whom = missing->slots_[i].reader;
      return Status(
          StatusCode::kTimeout,
          fmt::format("rank {}: waited {:.1f} s for rank {} to make its end of a connection: has it called {}?",
                      missing->rank_, waited_s, whom, collective_name(plans[which]->request.collective)));
    }
    RONDO_TRY(missing->lost_peer());
    timespec pause{0, static_cast<long>(wait_ns)};
    nanosleep(&pause, nullptr);
  }
}

// The system says that a process is gone a moment after its memory is.
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
  if (!lost || transport_.departed(lost->rank)) return {};  // whoever has left on purpose had done its part
  return Status(StatusCode::kPeerLost, fmt::format("rank {}: {}", rank_, lost->how));
}

// --- issuing

Status DeviceEngine::not_this(const DeviceRequest& request, const Status& why) const {
  if (why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kUnsupported) return why;
  const PlanRequest& r = request.request;
  return Status(why.code(),
                fmt::format("rank {}: {}{} of {} {} was not started: {}", rank_, collective_name(r.collective),
                            r.counts != nullptr ? "_v" : "", r.count_elems, dtype_name(r.dtype), why.message()));
}

Status DeviceEngine::check_buffer(std::string_view name, const void* ptr) const {
  if (ptr == nullptr) return {};
  unsigned type = 0;
  const cuda::Result known =
      cuda::driver()->pointer_attribute(&type, cuda::kPointerMemoryType, reinterpret_cast<cuda::DevicePtr>(ptr));
  if (known == cuda::kSuccess) return {};  // device memory, or host memory that the device sees
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("rank {}: {} is memory that CUDA does not know: this communicator's buffers lie on device {}", rank_,
                  name, transport_.device()));
}

Status DeviceEngine::reserve_scratch(uint64_t bytes) {
  if (bytes <= scratch_.size_bytes()) return {};
  RONDO_TRY_ASSIGN(auto larger,
                   cuda::DeviceMemory::make(round_up(std::max(bytes, 2 * scratch_.size_bytes()), 1 << 21)));
  std::swap(larger, scratch_);
  if (larger.size_bytes() != 0) old_scratch_.push_back(std::move(larger));
  return {};
}

// The calls of a launch may run at the same time, channel by channel: each has scratch of its own.
Status DeviceEngine::reserve_scratch(std::span<const Entry> entries,
                                     std::span<const std::shared_ptr<DevicePlan>> plans) {
  for (const Entry& e : entries) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].engine != e.engine) continue;
      entries[i].request->scratch_offset = bytes;
      bytes += round_up(plans[i]->program->scratch_bytes, 256);
    }
    cuda::CurrentContext current(e.engine->transport_.context());
    RONDO_TRY(e.engine->reserve_scratch(bytes));
  }
  return {};
}

Status DeviceEngine::begin_in(cuda::Stream stream) {
  const cuda::Driver* d = cuda::driver();
  if (captures(stream)) {
    if (any_ && !captured_ && !captures(last_stream_))  // what replays wait for: the calls before the first capture
      RONDO_TRY(cuda::check(d->event_record(serial_.get(), last_stream_), "cuEventRecord"));
    captured_ = true;
    RONDO_TRY(cuda::check(d->stream_wait_event(stream, serial_.get(), cuda::kEventWaitExternal), "cuStreamWaitEvent"));
    return cuda::check(d->stream_wait_event(stream, graph_serial_.get(), cuda::kEventWaitExternal),
                       "cuStreamWaitEvent");
  }
  if (captured_) RONDO_TRY(cuda::check(d->stream_wait_event(stream, graph_serial_.get(), 0), "cuStreamWaitEvent"));
  if (any_ && last_stream_ != stream)
    RONDO_TRY(cuda::check(d->stream_wait_event(stream, serial_.get(), 0), "cuStreamWaitEvent"));
  return {};
}

Status DeviceEngine::end_in(cuda::Stream stream, const DeviceRequest& request, const std::shared_ptr<DevicePlan>& plan,
                            cuda::PinnedMemory tables) {
  const cuda::Driver* d = cuda::driver();
  // Messages between two ranks have no place in the order that all ranks share, nor on the board of it.
  const uint64_t sequence = is_point_to_point(plan->request.collective) ? 0 : next_sequence_++;
  if (sequence != 0) transport_.board(rank_)->post(sequence, plan->program->operation, request.tag);
  if (captures(stream)) {
    if (sequence != 0) transport_.board(rank_)->finish(sequence);
    RONDO_TRY(cuda::check(d->event_record_with_flags(graph_serial_.get(), stream, cuda::kEventRecordExternal),
                          "cuEventRecordWithFlags"));
    const std::lock_guard lock(watch_mutex_);
    end_operation(request.op, {});  // it runs whenever the graph does
    watch_changed_.notify_all();
    return {};
  }
  RONDO_TRY(cuda::check(d->event_record(serial_.get(), stream), "cuEventRecord"));
  last_stream_ = stream;
  any_ = true;
  Outstanding o{sequence,
                {},
                plan->program->operation,
                request.tag,
                monotonic_ns(),
                static_cast<uint64_t>(request.deadline_s * 1e9),
                request.op,
                plan,
                std::move(tables)};
  const std::lock_guard lock(watch_mutex_);
  if (free_events_.empty()) {
    RONDO_TRY_ASSIGN(o.event, cuda::OwnedEvent::make());
  } else {
    o.event = std::move(free_events_.back());
    free_events_.pop_back();
  }
  RONDO_TRY(cuda::check(d->event_record(o.event.get(), stream), "cuEventRecord"));
  const bool first = outstanding_.empty();
  outstanding_.push_back(std::move(o));
  if (first) watch_changed_.notify_all();
  return {};
}

// What goes into one launch: a kernel, its calls in units, and whose they are.
struct DeviceEngine::Launch {
  struct Member {
    const Entry* entry;
    std::shared_ptr<DevicePlan> plan;
  };
  cuda::Function function = nullptr;
  std::vector<DeviceUnit> units;
  std::vector<DeviceCall> calls;
  std::vector<Member> members;
  uint32_t blocks = 0;

  void add_unit(uint32_t lanes, uint32_t channels, uint32_t first_call) {
    units.push_back({blocks, lanes, channels, first_call, static_cast<uint32_t>(calls.size()) - first_call});
    blocks += lanes * channels;
  }
};

Status DeviceEngine::launch(Launch& l) {
  const cuda::Driver* d = cuda::driver();
  LaunchArgs args{};
  args.num_units = static_cast<uint32_t>(l.units.size());
  args.num_calls = static_cast<uint32_t>(l.calls.size());
  cuda::PinnedMemory tables;
  if (l.units.size() > LaunchArgs::kMaxUnits || l.calls.size() > LaunchArgs::kMaxCalls) {
    const uint64_t units = round_up(l.units.size() * sizeof(DeviceUnit), 64);
    RONDO_TRY_ASSIGN(tables, cuda::PinnedMemory::make(units + l.calls.size() * sizeof(DeviceCall)));
    std::memcpy(tables.as(), l.units.data(), l.units.size() * sizeof(DeviceUnit));
    std::memcpy(tables.as() + units, l.calls.data(), l.calls.size() * sizeof(DeviceCall));
    args.more_units = reinterpret_cast<const DeviceUnit*>(tables.on_device());
    args.more_calls = reinterpret_cast<const DeviceCall*>(tables.on_device() + units);
  } else {
    std::copy(l.units.begin(), l.units.end(), args.units);
    std::copy(l.calls.begin(), l.calls.end(), args.calls);
  }
  // One stream carries the launch; the others wait for it, as it does for them.
  const cuda::Stream stream = l.members[0].entry->request->stream;
  std::vector<cuda::Stream> others;
  for (const Launch::Member& m : l.members) {
    const cuda::Stream s = m.entry->request->stream;
    if (s != stream && std::find(others.begin(), others.end(), s) == others.end()) others.push_back(s);
  }
  cuda::OwnedEvent join;
  if (!others.empty()) {
    RONDO_TRY_ASSIGN(join, cuda::OwnedEvent::make());
  }
  for (const cuda::Stream s : others) {
    RONDO_TRY(cuda::check(d->event_record(join.get(), s), "cuEventRecord"));
    RONDO_TRY(cuda::check(d->stream_wait_event(stream, join.get(), 0), "cuStreamWaitEvent"));
  }
  std::vector<DeviceEngine*> begun;
  for (const Launch::Member& m : l.members)
    if (std::find(begun.begin(), begun.end(), m.entry->engine) == begun.end()) {
      RONDO_TRY(m.entry->engine->begin_in(stream));
      begun.push_back(m.entry->engine);
    }
  void* params[] = {&args};
  cuda::LaunchConfig config{l.blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, nullptr, 0};
  const bool captured = captures(stream);
  DeviceEngine& first = *l.members[0].entry->engine;
  RONDO_TRY(first.kernels_->launch_in_order(config, l.function, params, captured));
  if (!others.empty()) RONDO_TRY(cuda::check(d->event_record(join.get(), stream), "cuEventRecord"));
  for (const cuda::Stream s : others)
    RONDO_TRY(cuda::check(d->stream_wait_event(s, join.get(), 0), "cuStreamWaitEvent"));
  if (captured && tables.size_bytes() != 0)  // replays read it
    first.transport_.keep(std::make_shared<cuda::PinnedMemory>(std::move(tables)));
  for (const Launch::Member& m : l.members) {
    cuda::PinnedMemory mine;
    if (&m == &l.members[0]) mine = std::move(tables);
    RONDO_TRY(m.entry->engine->end_in(stream, *m.entry->request, m.plan, std::move(mine)));
  }
  return {};
}

// The calls of each communicator in their order, as few launches as their kernels need; messages between two ranks come
// last, all at once, since they may wait for one another.
Status DeviceEngine::launch_rounds(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans) {
  struct Pending {
    size_t index;
    bool done = false;
  };
  std::vector<Pending> pending;
  for (size_t i = 0; i < entries.size(); ++i) {
    pending.push_back({i});
    if (plans[i]->program->num_loops != 0) continue;
    pending.back().done = true;  // nothing to move, on any rank
    end_operation(entries[i].request->op, {});
  }
  auto call_of = [&](size_t i) {
    const DeviceRequest& r = *entries[i].request;
    DeviceEngine& e = *entries[i].engine;
    DeviceCall c{};
    c.program = reinterpret_cast<const DeviceProgram*>(plans[i]->lowered);
    c.comm = e.comm_.as<DeviceComm>();
    c.control = reinterpret_cast<DeviceControl*>(e.control_.on_device());
    c.in = static_cast<const std::byte*>(r.in);
    c.out = static_cast<std::byte*>(r.out);
    c.scratch = e.scratch_.as() + r.scratch_offset;
    c.premul_at = r.premul_at;
    std::memcpy(c.premul, r.premul, sizeof c.premul);
    c.deadline_ns = static_cast<uint64_t>(r.deadline_s * 1e9);
    c.tag = r.tag;
    return c;
  };
  auto messages = [&](size_t i) { return is_point_to_point(plans[i]->request.collective); };
  for (const bool point_to_point : {false, true})
    for (;;) {
      const auto first = std::find_if(pending.begin(), pending.end(),
                                      [&](const Pending& p) { return !p.done && messages(p.index) == point_to_point; });
      if (first == pending.end()) break;
      Launch l;
      l.function = plans[first->index]->function;
      const cuda::Context context = entries[first->index].engine->transport_.context();
      std::vector<std::pair<const DeviceEngine*, Rank>> units_of;  // each engine, and each of its peers, has a unit
      for (Pending& lead : pending) {
        if (lead.done || messages(lead.index) != point_to_point) continue;
        const DeviceEngine* engine = entries[lead.index].engine;
        if (engine->transport_.context() != context) continue;
        const auto direction = [&](size_t i) {
          return point_to_point ? 2 * plans[i]->request.root + (plans[i]->request.collective == Collective::kSend) : 0;
        };
        const std::pair<const DeviceEngine*, Rank> unit{engine, direction(lead.index)};
        if (std::find(units_of.begin(), units_of.end(), unit) != units_of.end()) continue;
        units_of.push_back(unit);
        const auto first_call = static_cast<uint32_t>(l.calls.size());
        uint32_t lanes = 0, channels = 0;
        for (Pending& p : pending) {
          const size_t i = p.index;
          if (p.done || entries[i].engine != engine || messages(i) != point_to_point ||
              (point_to_point && direction(i) != unit.second))
            continue;
          if (plans[i]->function != l.function) break;  // the next launch's
          l.calls.push_back(call_of(i));
          l.members.push_back({&entries[i], plans[i]});
          lanes = std::max(lanes, plans[i]->num_lanes);
          channels = std::max(channels, plans[i]->num_channels);
          p.done = true;
        }
        if (l.calls.size() != first_call) l.add_unit(lanes, channels, first_call);
      }
      const DeviceWorld& world = l.members[0].entry->engine->world_;
      const uint32_t room = world.resident_blocks * std::max(1u, world.ranks_per_device);
      if (l.blocks > room)
        return Status(
            StatusCode::kExhausted,
            fmt::format("rank {}: a group's launch needs {} blocks and the device holds {} at once: put fewer "
                        "messages into a group, or set RONDO_DEVICE_CHANNELS lower",
                        l.members[0].entry->engine->rank_, l.blocks, room));
      cuda::CurrentContext current(context);
      RONDO_TRY(launch(l));
    }
  return {};
}

Status DeviceEngine::run(std::span<const Entry> entries) {
  if (entries.empty()) return {};
  std::vector<DeviceEngine*> engines;
  for (const Entry& e : entries)
    if (std::find(engines.begin(), engines.end(), e.engine) == engines.end()) engines.push_back(e.engine);
  std::sort(engines.begin(), engines.end());  // one order for all who lock several
  std::vector<std::unique_lock<std::mutex>> locks;
  for (DeviceEngine* e : engines) locks.emplace_back(e->mutex_);

  std::vector<std::shared_ptr<DevicePlan>> plans;
  Status failed;
  {
    const OutsideCapture outside;
    for (const Entry& entry : entries) {
      DeviceEngine& e = *entry.engine;
      const DeviceRequest& r = *entry.request;
      cuda::CurrentContext current(e.transport_.context());
      auto prepared = [&]() -> Expected<std::shared_ptr<DevicePlan>> {
        RONDO_TRY(e.error());
        RONDO_TRY(e.check_buffer("in", r.in));
        RONDO_TRY(e.check_buffer("out", r.out));
        RONDO_TRY_ASSIGN(auto plan, e.plan(r.request));
        return plan;
      }();
      if (!prepared.ok()) {
        failed = e.not_this(r, prepared.status());
        break;
      }
      plans.push_back(std::move(*prepared));
    }
    if (failed.ok()) failed = reserve_scratch(entries, plans);
    if (failed.ok()) {
      failed = connect_all(entries, plans);
      if (!failed.ok()) failed = entries[0].engine->not_this(*entries[0].request, failed);
    }
  }
  if (failed.ok()) {
    if (entries[0].engine->world_.engine == DeviceEngineKind::kStream) {
      failed = run_streams(entries, plans);
    } else {
      failed = launch_rounds(entries, plans);
    }
  }
  // A caller's mistake changes nothing; after anything else the ranks no longer agree on what runs.
  const StatusCode code = failed.code();
  if (!failed.ok() && code != StatusCode::kInvalidArgument && code != StatusCode::kUnsupported)
    for (DeviceEngine* e : engines) e->fail(failed);
  if (!failed.ok())
    for (const Entry& entry : entries)
      if (entry.request->op != nullptr && !entry.request->op->done.load(std::memory_order_acquire))
        end_operation(entry.request->op, failed);
  return failed;
}

Expected<double> DeviceEngine::forecast_us(const PlanRequest& request) {
  const std::lock_guard lock(mutex_);
  RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
  return found[0].forecast_ns / 1e3;
}

Expected<std::string> DeviceEngine::explain(const PlanRequest& request) {
  const std::lock_guard lock(mutex_);
  RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
  std::string text = device_planner_.describe(found[0]);
  if (found.size() > 1) text += "; next best " + device_planner_.describe(found[1]);
  return text;
}

}  // namespace rondo
