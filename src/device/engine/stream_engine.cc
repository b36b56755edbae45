// The stream engine: runs a rank's instructions as copies, flags and reduction kernels in the caller's stream. A stream
// that waits for a flag occupies no multiprocessor, so processes that share a device do not starve one another.
//
// A message uses one of kStreamSlots slots of the reader's memory: message m of a call uses slot m mod kStreamSlots.
// The writer's stream waits until `empty` is 1 and resets it, copies, and sets `full`. The reader's stream waits until
// `full` is 1 and resets it, reads, and sets `empty`. After a call all slots are empty, so every call begins with slot
// 0, and all values are equal in every call and graph replay.

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "device/engine/device_engine.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/images.h"

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

// A connection's messages that this thread has put into streams.
struct Issued {
  bool from_here = false, to_here = false;  // its ranks are in the group
  uint64_t sent = 0, received = 0;
  bool can_receive() const { return !from_here || sent > received; }
  bool can_send() const { return !to_here || sent < received + kStreamSlots; }
};
using IssuedMessages = std::map<cuda::DevicePtr, Issued>;  // by the address of the connection's flags

// Visits the readers of a step's connections, with each connection's key.
template <class Visit>
void for_readers(const ProgramStep& s, Visit visit) {
  for (const WritePort* w : s.send) {
    if (w->key.group == kUnicast) visit(w->key, w->key.reader);
    else
      for (const uint32_t r : w->counters) visit(w->key, static_cast<Rank>(r));
  }
}

}  // namespace

uint32_t DeviceEngine::stream_end(DevicePlan& plan, const ConnectionKey& key, Rank reader) {
  const auto known =
      std::find_if(ends_.begin(), ends_.end(), [&](const End& e) { return e.key.key == key && e.other == reader; });
  const auto index = static_cast<uint32_t>(known - ends_.begin());
  if (known == ends_.end()) ends_.push_back({{key}, reader});
  if (std::find(plan.ends.begin(), plan.ends.end(), index) == plan.ends.end()) plan.ends.push_back(index);
  return index;
}

Status DeviceEngine::order_plan(DevicePlan& plan) {
  const CallShape& r = plan.request;
  const Program& p = *plan.main.program;
  plan.ends.clear();
  plan.step_ends.assign(p.lanes.size(), {});
  size_t most_sources = 0;
  for (size_t lane = 0; lane < p.lanes.size(); ++lane)
    for (const ProgramStep& s : p.lanes[lane]) {
      if (!s.copies) most_sources = std::max(most_sources, s.recv.size() + 1);
      DevicePlan::StepEnds& used = plan.step_ends[lane].emplace_back();
      for (const ReadPort* port : s.recv) used.receives.push_back(stream_end(plan, port->key, rank_));
      for_readers(s,
                  [&](const ConnectionKey& key, Rank reader) { used.sends.push_back(stream_end(plan, key, reader)); });
    }
  if (most_sources > ReduceArgs::kMaxSources)
    return unsupported("{} adds {} operands at once; a reduction kernel takes {}", plan.how.algorithm->name,
                       most_sources, ReduceArgs::kMaxSources);
  if (collective_reduces(r.collective) || p.mixed) {
    const Op op = p.operation.op;
    RONDO_TRY_ASSIGN(plan.function, kernels_->find(collective_images(), p.mixed ? reduce_mixed_name(op)
                                                                                : reduce_name(p.operation.dtype, op)));
  }
  if (is_point_to_point(r.collective) || (r.counts != nullptr && r.counts->pairwise)) {
    plan.order = order_by_distance(p);
    return {};
  }
  ProgramShape shape;
  shape.operation = p.operation;
  shape.message_bytes = plan.how.message_bytes;
  shape.counts = r.counts.get();
  RONDO_TRY_ASSIGN(const AllPrograms all,
                   compile_all(*plan.how.algorithm, planner_.hosts(), r.root, shape, transport_, host_kernels_));
  auto orders = play_through(all.programs);
  if (!orders.ok()) return Status(StatusCode::kUnsupported, std::string(orders.status().message()));
  plan.order = std::move((*orders)[static_cast<size_t>(rank_)]);
  return {};
}

// Issues instructions into a stream. Messages of a connection use slots in order, from slot 0 on. Afterwards all slots
// are empty again.
class DeviceEngine::StreamIssue {
 public:
  StreamIssue(DeviceEngine& engine, cuda::Stream stream)
      : e_(engine), stream_(stream), ops_(stream), sent_(engine.ends_.size()), received_(engine.ends_.size()) {}

  Status add(const StreamItem& item) {
    const Program& p = *item.item->plan->main.program;
    const ProgramStep& s = p.lanes[item.step.lane][item.step.pc];
    const DevicePlan::StepEnds& ends = item.item->plan->step_ends[item.step.lane][item.step.pc];
    const uint64_t skip = s.is(kFlagCredit) ? 0 : item.step.loop * p.loop_elems;
    const uint64_t num_elems = s.is(kFlagCredit) ? 0 : std::min(p.loop_elems, s.src.num_elems - skip);
    ins_.clear();
    outs_.clear();
    for (const uint32_t c : ends.receives) RONDO_TRY(wait_until_full(c));
    for (const uint32_t c : ends.sends) RONDO_TRY(wait_until_empty(c, num_elems * p.wire_bytes));
    RONDO_TRY(ops_.flush());
    if (num_elems != 0) RONDO_TRY(move(item, s, skip, num_elems));
    for (const Half& in : ins_) RONDO_TRY(ops_.set(in.flag));
    for (const Half& out : outs_) RONDO_TRY(ops_.set(out.flag));
    return {};
  }
  Status finish() { return ops_.flush(); }

 private:
  struct Half {  // of the current message
    std::byte* data;
    cuda::DevicePtr flag;  // to be set when the data have been read, or written
  };

  static cuda::DevicePtr flag(const CudaTransport::StreamSlots& use, uint32_t slot, size_t member) {
    return use.flags_on_device + slot * sizeof(SlotFlags) + member;
  }
  std::byte* data(const CudaTransport::StreamSlots& use, uint32_t slot) const {
    return use.data + slot * e_.world_.stream_slot_bytes;
  }
  Status wait_until_full(uint32_t connection) {
    const CudaTransport::StreamSlots& use = e_.ends_[connection].slots;
    const uint32_t slot = received_[connection]++ % kStreamSlots;
    ins_.push_back({data(use, slot), flag(use, slot, offsetof(SlotFlags, empty))});
    return ops_.wait_and_reset(flag(use, slot, offsetof(SlotFlags, full)));
  }
  Status wait_until_empty(uint32_t connection, uint64_t bytes) {
    const CudaTransport::StreamSlots& use = e_.ends_[connection].slots;
    const uint32_t slot = sent_[connection]++ % kStreamSlots;
    outs_.push_back({data(use, slot), flag(use, slot, offsetof(SlotFlags, full))});
    RONDO_TRY(ops_.wait_and_reset(flag(use, slot, offsetof(SlotFlags, empty))));
    if (!use.crosses) return {};
    return ops_.set(flag(use, slot, offsetof(SlotFlags, bytes)), static_cast<uint32_t>(bytes));
  }

  // The address of an element in the rank's own buffers.
  std::byte* own(const StreamItem& item, Buffer b, uint64_t elem) const {
    const Call& call = *item.item->call;
    std::byte* base = b == Buffer::kIn    ? const_cast<std::byte*>(static_cast<const std::byte*>(call.in))
                      : b == Buffer::kOut ? static_cast<std::byte*>(call.out)
                                          : e_.scratch_.as() + item.item->scratch_offset;
    return base + elem * item.item->plan->main.program->elem_bytes[static_cast<int>(b)];
  }
  Status copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    if (to == from) return {};
    return cuda::check(cuda::driver()->memcpy_async(reinterpret_cast<cuda::DevicePtr>(to),
                                                    reinterpret_cast<cuda::DevicePtr>(from), bytes, stream_),
                       "cuMemcpyAsync");
  }

  Status move(const StreamItem& item, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
    const uint64_t bytes = num_elems * item.item->plan->main.program->wire_bytes;
    std::byte* const src = s.has(kVerbSrc) ? own(item, s.src_buffer, s.src.first_elem + skip) : nullptr;
    std::byte* const dst = s.has(kVerbDst) ? own(item, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
    if (s.copies) {
      const std::byte* const from = src != nullptr ? src : ins_[0].data;
      if (dst != nullptr) RONDO_TRY(copy(dst, from, bytes));
      for (const Half& out : outs_) RONDO_TRY(copy(out.data, from, bytes));
      return {};
    }
    ReduceArgs args = reduce_args(item, s, src, dst);
    args.step.num_elems = num_elems;
    void* params[] = {&args};
    const auto blocks = static_cast<unsigned>(std::clamp<uint64_t>(num_elems / (kBlockThreads * 8), 1, 256));
    cuda::LaunchConfig config{blocks, 1, 1, kBlockThreads, 1, 1, 0, stream_, nullptr, 0};
    RONDO_TRY(cuda::check(cuda::driver()->launch_kernel(&config, item.item->plan->function, params, nullptr),
                          "cuLaunchKernelEx"));
    // Further readers get copies of the first reader's data.
    const size_t written = args.step.num_dst - (dst != nullptr ? 1 : 0);
    for (size_t i = written; i < outs_.size(); ++i) RONDO_TRY(copy(outs_[i].data, outs_[0].data, bytes));
    return {};
  }

  ReduceArgs reduce_args(const StreamItem& item, const ProgramStep& s, const std::byte* src, std::byte* dst) const {
    const Program& p = *item.item->plan->main.program;
    ReduceArgs args{};
    device_kernels::ReduceStep& r = args.step;
    r.own = r.kNoOwn;
    for (size_t i = 0; i <= ins_.size(); ++i) {  // own source after src_position received operands
      if (src != nullptr && i == s.src_position) {
        if (s.prescale || p.mixed) r.own = r.num_src;
        args.src[r.num_src++] = src;
      }
      if (i < ins_.size()) args.src[r.num_src++] = ins_[i].data;
    }
    if (dst != nullptr) args.dst[r.num_dst++] = dst;
    for (const Half& out : outs_)
      if (r.num_dst < ReduceArgs::kMaxSinks) args.dst[r.num_dst++] = out.data;
    r.divide_by = s.is(kFlagFinal) ? p.divide_by : 0;
    r.scale_own = s.prescale;
    r.own_type = s.src_buffer == Buffer::kIn    ? p.types.input
                 : s.src_buffer == Buffer::kOut ? p.types.output
                                                : p.types.wire;
    r.wire_type = p.types.wire;
    r.dst_type = s.dst_buffer == Buffer::kOut ? p.types.output : p.types.wire;
    r.has_dst = dst != nullptr;
    r.result_as_wire = s.as_wire;
    args.premul_at = item.item->call->premul_at;
    std::memcpy(args.premul, item.item->call->premul, sizeof args.premul);
    return args;
  }

  DeviceEngine& e_;
  const cuda::Stream stream_;
  MemOps ops_;
  std::vector<uint32_t> sent_, received_;  // messages so far, by connection
  std::vector<Half> ins_, outs_;           // of the current instruction
};

// One rank's calls on their way into its stream, some instructions at a time: the collectives one after the other, then
// all messages between two ranks, by distance and then by number in their connection. All ranks use this order, so no
// rank waits for a message or a free slot that comes only later in it (stream_order.h).
class DeviceEngine::StreamShare {
 public:
  explicit StreamShare(DeviceEngine& engine) : e_(engine) {}
  DeviceEngine& engine() const { return e_; }
  void add(const Item& call) { calls_.push_back(call); }

  /// `own`: in a stream of the engine's own, forked from the callers' streams.
  Status begin(bool own) {
    cuda::CurrentContext current(e_.transport_.context());
    if (own && e_.own_stream_.context() == nullptr) {
      RONDO_TRY_ASSIGN(e_.own_stream_, cuda::OwnedStream::make());
    }
    streams_ = JoinedStreams(own ? e_.own_stream_.get() : calls_[0].stream());
    for (const Item& call : calls_) streams_.add(call.stream());
    RONDO_TRY(streams_.begin());
    for (const Item& call : calls_)  // no kernel waits, so this means that the stream has reached the calls
      if (const cuda::Event told = call.launch_event(); told != nullptr)
        RONDO_TRY(cuda::record(told, streams_.carrier()));
    arrange();
    return {};
  }

  /// Adds the connections of the calls.
  void list(IssuedMessages& messages) const {
    for (const Part& part : parts_)
      for (const StreamItem& item : part.items)
        for_ends(item, [&](cuda::DevicePtr flags, bool sends) {
          (sends ? messages[flags].from_here : messages[flags].to_here) = true;
        });
  }
  bool done() const { return at_ == parts_.size(); }

  /// Issues the next instructions, as long as they are ready or `in_any_case`. Returns true if it made progress.
  Expected<bool> issue_some(IssuedMessages& messages, bool in_any_case) {
    constexpr size_t kAtOnce = 8;  // few of a stream's queue, which holds about a thousand operations
    if (done()) return false;
    cuda::CurrentContext current(e_.transport_.context());
    Part& part = parts_[at_];
    if (!into_) {
      RONDO_TRY(e_.begin_in(streams_.carrier(), part.calls[0]->call->deadline_ns));
      into_.emplace(e_, streams_.carrier());
    }
    size_t n = 0;
    for (; n < kAtOnce && next_ < part.items.size(); ++n, ++next_) {
      const StreamItem& item = part.items[next_];
      if (!in_any_case && !is_ready(item, messages)) break;
      RONDO_TRY(into_->add(item));
      if (messages.empty()) continue;
      for_ends(item,
               [&](cuda::DevicePtr flags, bool sends) { ++(sends ? messages[flags].sent : messages[flags].received); });
    }
    RONDO_TRY(into_->finish());
    if (next_ < part.items.size()) return n != 0;
    for (const Item* call : part.calls) RONDO_TRY(e_.end_in(streams_.carrier(), *call, {}));
    into_.reset();
    next_ = 0;
    ++at_;
    return true;
  }
  Status end() {
    cuda::CurrentContext current(e_.transport_.context());
    return streams_.end();
  }

 private:
  struct Part {
    std::vector<StreamItem> items;
    std::vector<const Item*> calls;
  };
  struct Keyed {
    int distance;
    uint64_t number;
    bool receives;
    StreamItem item;
  };
  template <class Visit>
  void for_ends(const StreamItem& item, Visit visit) const {
    const DevicePlan::StepEnds& ends = item.item->plan->step_ends[item.step.lane][item.step.pc];
    for (const uint32_t c : ends.receives) visit(e_.ends_[c].slots.flags_on_device, false);
    for (const uint32_t c : ends.sends) visit(e_.ends_[c].slots.flags_on_device, true);
  }
  // True if no other rank of the group must issue something before.
  bool is_ready(const StreamItem& item, IssuedMessages& messages) const {
    bool ready = true;
    if (messages.empty()) return true;
    for_ends(item, [&](cuda::DevicePtr flags, bool sends) {
      const Issued& m = messages[flags];
      ready = ready && (sends ? m.can_send() : m.can_receive());
    });
    return ready;
  }
  void arrange() {
    std::vector<Keyed> messages;
    std::map<std::pair<Rank, bool>, uint64_t> numbers;
    Part last;
    for (const Item& call : calls_) {
      const CallShape& shape = call.call->shape;
      const bool receives = shape.collective == Collective::kRecv, message = is_point_to_point(shape.collective);
      Part& part = message ? last : parts_.emplace_back();
      part.calls.push_back(&call);
      for (const StreamStep& step : call.plan->order) {
        if (message)
          messages.push_back({e_.distance_of(shape), numbers[{shape.root, receives}]++, receives, {&call, step}});
        else part.items.push_back({&call, step});
      }
    }
    if (last.calls.empty()) return;
    std::stable_sort(messages.begin(), messages.end(), [](const Keyed& a, const Keyed& b) {
      return std::tie(a.distance, a.number, a.receives) < std::tie(b.distance, b.number, b.receives);
    });
    for (const Keyed& m : messages) last.items.push_back(m.item);
    parts_.push_back(std::move(last));
  }

  DeviceEngine& e_;
  std::vector<Item> calls_;
  JoinedStreams streams_{nullptr};
  std::vector<Part> parts_;
  size_t at_ = 0, next_ = 0;  // part, and instruction in it
  std::optional<StreamIssue> into_;
};

// In a group of several ranks each has its own stream, because they wait for one another. Their instructions are issued
// in turns: the driver blocks this thread while a stream's queue is full, and that stream may wait for another rank.
// A flag's store is issued before the wait for it, because their streams may share a hardware queue.
Status DeviceEngine::run_streams(std::span<const Item> items) {
  std::deque<StreamShare> shares;
  for (const Item& item : items) {
    const auto it =
        std::find_if(shares.begin(), shares.end(), [&](const auto& s) { return &s.engine() == item.engine; });
    (it != shares.end() ? *it : shares.emplace_back(*item.engine)).add(item);
  }
  IssuedMessages messages;  // empty for one rank
  for (StreamShare& s : shares) {
    RONDO_TRY(s.begin(shares.size() > 1));
    if (shares.size() > 1) s.list(messages);
  }
  for (bool moved = true; !std::all_of(shares.begin(), shares.end(), [](const auto& s) { return s.done(); });) {
    const bool stuck = !std::exchange(moved, false);
    for (StreamShare& s : shares) {
      RONDO_TRY_ASSIGN(const bool some, s.issue_some(messages, stuck));
      moved |= some;
    }
  }
  for (StreamShare& s : shares) RONDO_TRY(s.end());
  return {};
}

}  // namespace rondo
