#include "device/engine/device_tracing.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "device/driver/capture.h"
#include "plan/describe_program.h"

namespace rondo {
namespace {

constexpr uint64_t kCountBytes = 64;

ConnectionForm form_of_step(const LoweredProgram& lowered, uint8_t flags, const ConnectionKey& key,
                            const CudaTransport& transport) {
  const bool credit = (flags & kFlagCredit) != 0;
  return transport.form_of(key, credit ? ConnectionForm::kLines : form_of(lowered.header.protocol));
}

// The host's description, with the device's own values.
TracedPlan describe_lowered(const LoweredProgram& lowered, const CudaTransport& transport) {
  const DeviceProgram& header = lowered.header;
  TracedPlan plan = describe_program(*lowered.program);
  plan.protocol = header.direct != 0 ? "direct" : protocol_name(header.protocol);
  plan.loop_elems = header.loop_elems;
  plan.num_loops = lowered.counts.num_loops;
  // On a device each form of message has its own FIFO, and credits use separate lines.
  for (auto& lane : plan.lanes)
    for (TracedInstruction& i : lane)
      for (auto* ports : {&i.recv, &i.send})
        for (TracedConnection& c : *ports)
          c.form =
              static_cast<uint8_t>(form_of_step(lowered, i.flags, {c.writer, c.reader, c.tag, c.group}, transport));
  return plan;
}

uint64_t bytes_of(const ProgramStep& s, const LoweredProgram& lowered, const DeviceRecord& r) {
  const DeviceProgram& header = lowered.header;
  if (s.is(kFlagCredit) || s.verb == Verb::kWait) return 0;
  const uint64_t share =
      channel_extent(s.src.num_elems, lowered.counts.num_channels, r.channel, header.wire_bytes).num_elems;
  const uint64_t skip = r.loop * header.loop_elems;
  return skip >= share ? 0 : std::min(header.loop_elems, share - skip) * header.wire_bytes;
}

}  // namespace

uint64_t most_records(const LoweredProgram& lowered) {
  const DeviceProgram& header = lowered.header;
  return lowered.counts.num_loops * lowered.counts.num_channels * header.lane_first[header.num_lanes];
}

Expected<std::unique_ptr<LaunchTrace>> LaunchTrace::make(uint64_t num_records) {
  auto trace = std::make_unique<LaunchTrace>();
  trace->capacity_ = std::bit_ceil(std::clamp<uint64_t>(num_records, 64, kMostRecords));
  RONDO_TRY_ASSIGN(trace->memory_, cuda::DeviceMemory::make(kCountBytes + trace->capacity_ * sizeof(DeviceRecord)));
  return trace;
}

Status LaunchTrace::begin(cuda::Stream stream) {
  fetched_ = false;
  return cuda::check(cuda::driver()->memset_d8_async(memory_.get(), 0, kCountBytes, stream), "cuMemsetD8Async");
}

DeviceTrace LaunchTrace::on_device() const {
  return {reinterpret_cast<DeviceRecord*>(memory_.as() + kCountBytes), memory_.as<uint64_t>(), capacity_};
}

Expected<const std::vector<DeviceRecord>*> LaunchTrace::records(cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  if (fetched_) return &records_;
  const cuda::Driver* d = cuda::driver();
  // Uses its own stream: a copy in the default stream would wait for the caller's streams.
  auto fetch = [&](void* to, uint64_t offset, uint64_t bytes) -> Status {
    RONDO_TRY(cuda::check(d->memcpy_async(reinterpret_cast<cuda::DevicePtr>(to), memory_.get() + offset, bytes, stream),
                          "cuMemcpyAsync"));
    return cuda::check(d->stream_synchronize(stream), "cuStreamSynchronize");
  };
  uint64_t written = 0;
  RONDO_TRY(fetch(&written, 0, sizeof written));
  records_.resize(std::min(written, capacity_));
  num_lost_ = written - records_.size();
  if (!records_.empty()) RONDO_TRY(fetch(records_.data(), kCountBytes, records_.size() * sizeof(DeviceRecord)));
  std::sort(records_.begin(), records_.end(), [](const DeviceRecord& a, const DeviceRecord& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns < b.end_ns;
  });
  fetched_ = true;
  return &records_;
}

Status DeviceTracing::prepare(KernelLoader& kernels) {
  if (stream_.context() == nullptr) {
    RONDO_TRY_ASSIGN(stream_, cuda::OwnedStream::make());
  }
  return clock_.read(kernels);
}

Expected<std::shared_ptr<LaunchTrace>> DeviceTracing::room_for(uint64_t num_records) {
  num_records = std::min(num_records, LaunchTrace::kMostRecords);
  for (const auto& l : launches_)
    if (l.use_count() == 1 && l->capacity() >= num_records) {
      std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the release by its last holder
      return l;
    }
  const cuda::OutsideCapture outside;
  RONDO_TRY_ASSIGN(auto made, LaunchTrace::make(num_records));
  launches_.push_back(std::move(made));
  return launches_.back();
}

Status DeviceTracing::add(LaunchTrace& launch, uint32_t call, uint64_t sequence, const LoweredProgram& main,
                          const LoweredProgram& fallback, KernelLoader& kernels) {
  RONDO_TRY(clock_.refresh(kernels));
  RONDO_TRY_ASSIGN(const auto* const records, launch.records(stream_.get()));
  for (const DeviceRecord& r : *records) {
    const LoweredProgram& ran = r.fallback != 0 ? fallback : main;
    if (r.call != call || ran.program == nullptr) continue;
    const Program& program = *ran.program;
    if (r.lane >= program.lanes.size() || r.pc >= program.lanes[r.lane].size()) continue;
    if (program.traced.trace != trace_->serial())
      program.traced = {trace_->serial(), trace_->add_plan(describe_lowered(ran, transport_))};
    const ProgramStep& s = program.lanes[r.lane][r.pc];
    const uint64_t bytes = bytes_of(s, ran, r);
    StepRecord step{.sequence = sequence,
                    .plan = program.traced.plan,
                    .lane = r.lane,
                    .pc = r.pc,
                    .channel = r.channel,
                    .bytes_high = bytes >> 32,
                    .bytes_low = static_cast<uint32_t>(bytes),
                    .loop = r.loop};
    // The first receive and the first send are in the record itself, the others follow, as far as known.
    const size_t recvs = s.recv.size(), sends = s.send.size();
    const bool all = r.num_steps == recvs + sends;
    if (recvs != 0) step.recv_step = r.steps[0];
    if (sends != 0) step.send_step = r.steps[all ? recvs : 1];
    LaneWait wait;
    const uint64_t begin = clock_.ticks(r.begin_ns), ready = begin + clock_.duration_ticks(r.wait_ns);
    if (r.wait_ns != 0) {
      // Data in lines is waited for while it is moved.
      const bool polls_data = std::ranges::any_of(s.recv, [&](const ReadPort* port) {
        return DeviceLayout::has_lines(form_of_step(ran, s.flags, port->key, transport_));
      });
      const WaitReason why = s.verb == Verb::kWait ? WaitReason::kOrder
                             : polls_data          ? WaitReason::kData
                                                   : WaitReason::kRoom;
      wait = {begin, begin, {}, why};
    }
    trace_->add(step, wait, ready, std::max(ready, clock_.ticks(r.end_ns)));
    StepPorts ports{};
    ports.sequence = sequence;
    ports.plan = step.plan;
    ports.kind = static_cast<uint64_t>(RecordKind::kPorts);
    for (size_t i = 1; all && i < recvs + sends; ++i)
      if (i != recvs) ports.steps[ports.count++] = r.steps[i];
    if (ports.count != 0) trace_->next() = std::bit_cast<StepRecord>(ports);
  }
  return {};
}

}  // namespace rondo
