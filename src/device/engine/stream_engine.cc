// The stream engine: runs a rank's instructions as copies, flags and reduction kernels in the caller's stream. A stream
// that waits for a flag occupies no multiprocessor, so processes that share a device do not starve one another.
//
// A message uses one of kStreamSlots slots of the reader's memory: message m of a call uses slot m mod kStreamSlots.
// The writer's stream waits until `empty` is 1 and resets it, copies, and sets `full`. The reader's stream waits until
// `full` is 1 and resets it, reads, and sets `empty`. After a call all slots are empty, so every call begins with slot
// 0, and all values are equal in every call and graph replay.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "device/engine/device_engine.h"

namespace rondo {
namespace {

constexpr size_t kMaxMemOps = 64;  // per driver call

// Batches waits and writes of flags for the driver.
class MemOps {
 public:
  explicit MemOps(cuda::Stream stream) : stream_(stream) {}
  Status wait_and_reset(cuda::DevicePtr flag) {
    RONDO_TRY(add(cuda::kMemOpWaitValue32, flag, 1, cuda::kWaitGeq));
    return add(cuda::kMemOpWriteValue32, flag, 0, 0);
  }
  Status set(cuda::DevicePtr flag, uint32_t to = 1) { return add(cuda::kMemOpWriteValue32, flag, to, 0); }
  Status flush() {
    if (ops_.empty()) return {};
    const Status s =
        cuda::check(cuda::driver()->stream_batch_mem_op(stream_, static_cast<unsigned>(ops_.size()), ops_.data(), 0),
                    "cuStreamBatchMemOp");
    ops_.clear();
    return s;
  }

 private:
  Status add(int operation, cuda::DevicePtr flag, uint32_t value, unsigned flags) {
    if (ops_.size() == kMaxMemOps) RONDO_TRY(flush());
    cuda::BatchMemOp op;
    std::memset(&op, 0, sizeof op);
    op.value.operation = operation;
    op.value.address = flag;
    op.value.value = value;
    op.value.flags = flags;
    ops_.push_back(op);
    return {};
  }
  cuda::Stream stream_;
  std::vector<cuda::BatchMemOp> ops_;
};

// Visits the readers of a step's connections, with each connection's key.
template <class Visit>
void for_readers(const ProgramStep& s, int nranks, Visit visit) {
  for (const WritePort* w : s.send) {
    if (w->key.group == kUnicast) visit(w->key, w->key.reader);
    else
      for (const uint32_t r : w->counters) visit(w->key, static_cast<Rank>(r));
  }
}

}  // namespace

Status DeviceEngine::order_plan(DevicePlan& plan) {
  const PlanRequest& r = plan.request;
  const Program& p = *plan.program;
  plan.slots.clear();
  size_t most_sources = 0;
  for (const ProgramLane& lane : p.lanes)
    for (const ProgramStep& s : lane) {
      if (!s.copies) most_sources = std::max(most_sources, s.recv.size() + 1);
      auto use = [&](const ConnectionKey& key, Rank reader) -> Status {
        uint32_t i = 0;
        while (i < slots_.size() && !(slots_[i].key == key && slots_[i].reader == reader)) ++i;
        if (i == slots_.size()) slots_.push_back({key, reader, false, {}});
        if (std::find(plan.slots.begin(), plan.slots.end(), i) == plan.slots.end()) plan.slots.push_back(i);
        return {};
      };
      for (const ReadPort* port : s.recv) RONDO_TRY(use(port->key, rank_));
      for_readers(s, nranks_, [&](const ConnectionKey& key, Rank reader) { (void)use(key, reader); });
    }
  if (most_sources > ReduceArgs::kMaxSources)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} adds {} operands at once; a reduction kernel takes {}", plan.how.algorithm->name,
                              most_sources, ReduceArgs::kMaxSources));
  plan.kernel = p.mixed ? reduce_mixed_name(p.operation.op) : reduce_name(p.operation.dtype, p.operation.op);
  if (collective_reduces(r.collective) || p.mixed) {
    RONDO_TRY_ASSIGN(plan.function, kernels_->find(plan.kernel));
  }
  if (is_point_to_point(r.collective) || (r.counts != nullptr && r.counts->pairwise)) {
    plan.order = order_by_distance(p);
    return {};
  }
  ProgramShape shape;
  shape.operation = p.operation;
  shape.message_bytes = plan.how.message_bytes;
  shape.counts = r.counts;
  RONDO_TRY_ASSIGN(const AllPrograms all,
                   compile_all(*plan.how.algorithm, planner_.hosts(), r.root, shape, host_kernels_));
  auto played = play_through(all.programs);
  if (!played.ok()) return Status(StatusCode::kUnsupported, std::string(played.status().message()));
  plan.order = std::move((*played)[static_cast<size_t>(rank_)]);
  return {};
}

// Each rank's calls go into one stream, in order. In a group of several ranks each has its own stream, because they
// wait for one another. These streams are forked from the callers' streams and joined to them.
Status DeviceEngine::run_streams(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans) {
  const cuda::Driver* d = cuda::driver();
  struct Share {
    DeviceEngine* engine;
    std::vector<Entry> entries;
    std::vector<std::shared_ptr<DevicePlan>> plans;
    cuda::Stream stream = nullptr;
    std::vector<cuda::Stream> others;  // callers' streams except `stream`
  };
  std::vector<Share> shares;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (plans[i]->program->num_loops == 0) {  // nothing to move, on any rank
      end_operation(entries[i].request->op, {});
      continue;
    }
    auto it = std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.engine == entries[i].engine; });
    if (it == shares.end()) it = shares.insert(it, {entries[i].engine, {}, {}, nullptr, {}});
    it->entries.push_back(entries[i]);
    it->plans.push_back(plans[i]);
  }
  for (Share& s : shares) {
    cuda::CurrentContext current(s.engine->transport_.context());
    s.stream = s.entries[0].request->stream;
    if (shares.size() > 1) {
      if (s.engine->own_stream_.context() == nullptr) {
        RONDO_TRY_ASSIGN(s.engine->own_stream_, cuda::OwnedStream::make());
      }
      s.stream = s.engine->own_stream_.get();
    }
    for (const Entry& e : s.entries)
      if (const cuda::Stream o = e.request->stream;
          o != s.stream && std::find(s.others.begin(), s.others.end(), o) == s.others.end())
        s.others.push_back(o);
    if (s.others.empty()) continue;
    RONDO_TRY_ASSIGN(const auto fork, cuda::OwnedEvent::make());
    for (const cuda::Stream o : s.others) {
      RONDO_TRY(cuda::check(d->event_record(fork.get(), o), "cuEventRecord"));
      RONDO_TRY(cuda::check(d->stream_wait_event(s.stream, fork.get(), 0), "cuStreamWaitEvent"));
    }
  }
  for (Share& s : shares) {
    cuda::CurrentContext current(s.engine->transport_.context());
    for (const Entry& e : s.entries)  // no kernel waits, so this means that the stream has reached the calls
      if (const cuda::Event told = e.request->launch_event; told != nullptr)
        RONDO_TRY(cuda::check(d->event_record(told, s.stream), "cuEventRecord"));
    RONDO_TRY(s.engine->issue_calls(s.entries, s.plans, s.stream));
  }
  for (Share& s : shares) {
    if (s.others.empty()) continue;
    cuda::CurrentContext current(s.engine->transport_.context());
    RONDO_TRY_ASSIGN(const auto join, cuda::OwnedEvent::make());
    RONDO_TRY(cuda::check(d->event_record(join.get(), s.stream), "cuEventRecord"));
    for (const cuda::Stream o : s.others)
      RONDO_TRY(cuda::check(d->stream_wait_event(o, join.get(), 0), "cuStreamWaitEvent"));
  }
  return {};
}

// Issues the collectives one after the other, then all messages between two ranks, by distance and then by number in
// their connection, so that no rank sends more than its peer can have taken (stream_order.h).
Status DeviceEngine::issue_calls(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans,
                                 cuda::Stream stream) {
  struct Keyed {
    int distance;
    uint64_t number;
    bool receives;
    StreamItem item;
  };
  std::vector<Keyed> messages;
  std::map<std::pair<Rank, bool>, uint64_t> numbers;
  for (size_t i = 0; i < entries.size(); ++i) {
    const DevicePlan& plan = *plans[i];
    const DeviceRequest& request = *entries[i].request;
    if (is_point_to_point(plan.request.collective)) {
      const bool receives = plan.request.collective == Collective::kRecv;
      const Rank peer = plan.request.root;
      for (const StreamStep& step : plan.order)
        messages.push_back({distance_of(plan.request), numbers[{peer, receives}]++, receives, {&plan, &request, step}});
      continue;
    }
    std::vector<StreamItem> items;
    for (const StreamStep& step : plan.order) items.push_back({&plan, &request, step});
    RONDO_TRY(begin_in(stream));
    RONDO_TRY(issue(items, stream));
    RONDO_TRY(end_in(stream, request, plans[i], {}));
  }
  if (messages.empty()) return {};
  std::stable_sort(messages.begin(), messages.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.distance, a.number, a.receives) < std::tie(b.distance, b.number, b.receives);
  });
  std::vector<StreamItem> items;
  for (const Keyed& m : messages) items.push_back(m.item);
  RONDO_TRY(begin_in(stream));
  RONDO_TRY(issue(items, stream));
  for (size_t i = 0; i < entries.size(); ++i)
    if (is_point_to_point(plans[i]->request.collective)) RONDO_TRY(end_in(stream, *entries[i].request, plans[i], {}));
  return {};
}

// Messages of a connection use slots in order, from slot 0 on. Afterwards all slots are empty again.
Status DeviceEngine::issue(std::span<const StreamItem> items, cuda::Stream stream) {
  const cuda::Driver* d = cuda::driver();
  std::vector<uint32_t> sent(slots_.size()), received(slots_.size());  // messages so far, by connection
  auto slot_of = [&](const ConnectionKey& key, Rank reader) {
    uint32_t i = 0;
    while (!(slots_[i].key == key && slots_[i].reader == reader)) ++i;
    return i;
  };
  auto flag = [&](const SlotUse& use, uint32_t slot, bool full) {
    return use.slots.flags_on_device + slot * sizeof(SlotFlags) +
           (full ? offsetof(SlotFlags, full) : offsetof(SlotFlags, empty));
  };
  auto own = [&](const StreamItem& item, Buffer b, uint64_t elem) -> std::byte* {
    const DeviceRequest& request = *item.request;
    const Program& p = *item.plan->program;
    std::byte* base = b == Buffer::kIn    ? const_cast<std::byte*>(static_cast<const std::byte*>(request.in))
                      : b == Buffer::kOut ? static_cast<std::byte*>(request.out)
                                          : scratch_.as() + request.scratch_offset;
    return base + elem * p.elem_bytes[static_cast<int>(b)];
  };
  MemOps ops(stream);
  for (const StreamItem& item : items) {
    const DevicePlan& plan = *item.plan;
    const DeviceRequest& request = *item.request;
    const Program& p = *plan.program;
    const StreamStep& at = item.step;
    const ProgramStep& s = p.lanes[at.lane][at.pc];
    const uint64_t skip = s.is(kFlagCredit) ? 0 : at.loop * p.loop_elems;
    const uint64_t n = s.is(kFlagCredit) ? 0 : std::min(p.loop_elems, s.src.num_elems - skip);
    const uint64_t bytes = n * p.wire_bytes;
    struct In {
      std::byte* data;
      cuda::DevicePtr empty;
    };
    std::vector<In> ins;
    std::vector<std::pair<std::byte*, cuda::DevicePtr>> outs;  // data, and its full flag
    for (const ReadPort* port : s.recv) {
      const uint32_t c = slot_of(port->key, rank_), slot = received[c]++ % kStreamSlots;
      RONDO_TRY(ops.wait_and_reset(flag(slots_[c], slot, true)));
      ins.push_back({slots_[c].slots.data + slot * world_.stream_slot_bytes, flag(slots_[c], slot, false)});
    }
    Status failed;
    for_readers(s, nranks_, [&](const ConnectionKey& key, Rank reader) {
      if (!failed.ok()) return;
      const uint32_t c = slot_of(key, reader), slot = sent[c]++ % kStreamSlots;
      failed = ops.wait_and_reset(flag(slots_[c], slot, false));
      if (failed.ok() && slots_[c].slots.crosses)
        failed = ops.set(slots_[c].slots.flags_on_device + slot * sizeof(SlotFlags) + offsetof(SlotFlags, bytes),
                         static_cast<uint32_t>(bytes));
      outs.emplace_back(slots_[c].slots.data + slot * world_.stream_slot_bytes, flag(slots_[c], slot, true));
    });
    RONDO_TRY(failed);
    RONDO_TRY(ops.flush());

    if (n != 0) {
      std::byte* const src = s.has(kVerbSrc) ? own(item, s.src_buffer, s.src.first_elem + skip) : nullptr;
      std::byte* const dst = s.has(kVerbDst) ? own(item, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
      auto copy = [&](std::byte* to, const std::byte* from) {
        if (to == from) return Status();
        return cuda::check(d->memcpy_async(reinterpret_cast<cuda::DevicePtr>(to),
                                           reinterpret_cast<cuda::DevicePtr>(from), bytes, stream),
                           "cuMemcpyAsync");
      };
      if (s.copies) {
        const std::byte* const from = src != nullptr ? src : ins[0].data;
        if (dst != nullptr) RONDO_TRY(copy(dst, from));
        for (const auto& [to, full] : outs) RONDO_TRY(copy(to, from));
      } else {
        ReduceArgs args{};
        args.own = UINT32_MAX;
        for (size_t i = 0; i <= ins.size(); ++i) {  // own source after src_position received operands
          if (src != nullptr && i == s.src_position) {
            if (s.prescale || p.mixed) args.own = args.num_src;
            args.src[args.num_src++] = src;
          }
          if (i < ins.size()) args.src[args.num_src++] = ins[i].data;
        }
        if (dst != nullptr) args.dst[args.num_dst++] = dst;
        for (const auto& [to, full] : outs)
          if (args.num_dst < ReduceArgs::kMaxSinks) args.dst[args.num_dst++] = to;
        args.num_elems = n;
        args.divide_by = s.is(kFlagFinal) ? p.divide_by : 0;
        args.premultiply = s.prescale;
        args.premul_at = request.premul_at;
        std::memcpy(args.premul, request.premul, sizeof args.premul);
        args.own_type = static_cast<uint8_t>(s.src_buffer == Buffer::kIn    ? p.types.input
                                             : s.src_buffer == Buffer::kOut ? p.types.output
                                                                            : p.types.wire);
        args.wire_type = static_cast<uint8_t>(p.types.wire);
        args.dst_type = static_cast<uint8_t>(s.dst_buffer == Buffer::kOut ? p.types.output : p.types.wire);
        args.has_dst = dst != nullptr;
        args.result_as_wire = s.as_wire;
        void* params[] = {&args};
        const auto blocks = static_cast<unsigned>(std::clamp<uint64_t>(n / (kBlockThreads * 8), 1, 256));
        cuda::LaunchConfig config{blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, nullptr, 0};
        RONDO_TRY(cuda::check(d->launch_kernel(&config, plan.function, params, nullptr), "cuLaunchKernelEx"));
        // Further readers get copies of the first reader's data.
        const size_t written = args.num_dst - (dst != nullptr ? 1 : 0);
        for (size_t i = written; i < outs.size(); ++i) RONDO_TRY(copy(outs[i].first, outs[0].first));
      }
    }
    for (const In& in : ins) RONDO_TRY(ops.set(in.empty));
    for (const auto& [to, full] : outs) RONDO_TRY(ops.set(full));
  }
  return ops.flush();
}

}  // namespace rondo
