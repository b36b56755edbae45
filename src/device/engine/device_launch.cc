// Issues planned calls to streams: the order of a communicator's calls, and launches of the interpreter.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>

#include "base/error.h"
#include "device/driver/capture.h"
#include "device/engine/device_engine.h"

namespace rondo {

Status DeviceEngine::begin_in(cuda::Stream stream, uint64_t deadline_ns) {
  {  // while a long call fills the driver's queue, the proxy sends the messages of its first part
    const std::lock_guard lock(watch_mutex_);
    issuing_ = true;
    issue_since_ns_ = monotonic_ns();
    issue_deadline_ns_ = deadline_ns;
    transport_.attend(true);
    watch_changed_.notify_all();
  }
  if (cuda::captures(stream)) {
    captured_ = true;
    RONDO_TRY(cuda::wait_for(stream, serial_.get(), cuda::kEventWaitExternal));
    return cuda::wait_for(stream, graph_serial_.get(), cuda::kEventWaitExternal);
  }
  if (captured_) RONDO_TRY(cuda::wait_for(stream, graph_serial_.get()));
  return cuda::wait_for(stream, serial_.get());
}

Status DeviceEngine::end_in(cuda::Stream stream, const Item& item, Outstanding o) {
  const Call& call = *item.call;
  // Messages between two ranks have no number in the order that all ranks share, and are not posted on its status page.
  const Collective c = call.shape.collective;
  o.shape = item.plan->main.program->operation;
  if (is_point_to_point(c)) o.message_number = ++message_numbers_[{call.shape.root, c == Collective::kRecv}];
  else transport_.page(rank_)->post(o.sequence = next_sequence_++, o.shape, call.tag);
  if (cuda::captures(stream)) {
    if (o.sequence != 0) transport_.page(rank_)->finish(o.sequence);
    RONDO_TRY(
        cuda::check(cuda::driver()->event_record_with_flags(graph_serial_.get(), stream, cuda::kEventRecordExternal),
                    "cuEventRecordWithFlags"));
    for (const LoweredProgram* p : {&item.plan->main, &item.plan->fallback})
      if (p->on_device != nullptr) captured_programs_.insert(p->on_device);
    const std::lock_guard lock(watch_mutex_);
    replayed_ = true;
    issuing_ = false;
    item.end({});  // it runs whenever the graph does
    watch_changed_.notify_all();
    return {};
  }
  RONDO_TRY(cuda::record(serial_.get(), stream));
  o.tag = call.tag;
  o.issued_ns = monotonic_ns();
  o.deadline_ns = call.deadline_ns;
  o.work = call.work;
  o.plan = item.plan;
  {
    const std::lock_guard lock(watch_mutex_);
    if (!free_events_.empty()) {
      o.event = std::move(free_events_.back());
      free_events_.pop_back();
    }
  }
  // Without the lock: the driver may block here while the stream's queue is full, and the watcher must go on.
  if (o.event.context() == nullptr) {
    RONDO_TRY_ASSIGN(o.event, cuda::OwnedEvent::make());
  }
  RONDO_TRY(cuda::record(o.event.get(), stream));
  const std::lock_guard lock(watch_mutex_);
  outstanding_.push_back(std::move(o));
  issuing_ = false;
  watch_changed_.notify_all();
  return {};
}

// One launch: a kernel, its calls in units, and their owners.
struct DeviceEngine::Launch {
  using Shares = std::map<DeviceEngine*, uint32_t>;  // number of blocks
  static std::vector<LaunchPart> parts_of(const Shares& shares) {
    std::vector<LaunchPart> parts;
    for (const auto& [e, blocks] : shares) parts.push_back({e, e->communicator(), e->world_.resident_blocks, blocks});
    return parts;
  }

  cuda::Context context = nullptr;
  cuda::Function function = nullptr;
  std::shared_ptr<LaunchTrace> trace;  // nullptr: not traced, or captured
  std::vector<DeviceUnit> units;
  std::vector<LaunchCall> calls;
  std::vector<const Item*> members;
  uint32_t blocks = 0;
  Shares shares;
  std::vector<cuda::Event> told;  // callers' events, each once

  /// One stream carries the launch. The other streams and this one wait for each other.
  cuda::Stream stream() const { return members[0]->stream(); }

  LaunchArgs args{};
  cuda::PinnedMemory tables;
  Status lay_out();

  /// Collects the callers' launch events. Errors: kUnsupported (a captured launch can record only one event).
  Status find_events() {
    for (const Item* m : members)
      if (const cuda::Event e = m->launch_event(); e != nullptr && std::find(told.begin(), told.end(), e) == told.end())
        told.push_back(e);
    if (told.size() < 2 || !cuda::captures(stream())) return {};
    return unsupported(
        "rank {}: {} calls of a captured group have different launch_events: one launch can record only one",
        members[0]->engine->rank_, told.size());
  }

  /// Memory for the records of traced calls. nullptr if no call is traced, or if allocation failed; that is only
  /// printed on stderr, because no call depends on it.
  std::shared_ptr<LaunchTrace> open_trace() const;

  /// Adds the calls as a unit.
  void add(std::span<const Item* const> added, uint32_t lanes, uint32_t channels) {
    units.push_back(
        {blocks, lanes, channels, static_cast<uint32_t>(calls.size()), static_cast<uint32_t>(added.size())});
    blocks += lanes * channels;
    for (const Item* item : added) {
      calls.push_back(item->engine->launch_call(*item));
      members.push_back(item);
    }
  }
};

std::shared_ptr<LaunchTrace> DeviceEngine::Launch::open_trace() const {
  uint64_t records = 0;
  DeviceEngine* owner = nullptr;
  for (const Item* m : members) {
    const std::lock_guard lock(m->engine->watch_mutex_);
    if (!m->engine->tracing_.on()) continue;
    if (owner == nullptr) owner = m->engine;
    records += most_records(m->plan->main) + most_records(m->plan->fallback);
  }
  if (owner == nullptr) return nullptr;
  const std::lock_guard lock(owner->watch_mutex_);
  auto trace = owner->tracing_.room_for(records);
  if (trace.ok()) return std::move(*trace);
  std::fprintf(stderr, "rondo: rank %d: a call is not traced: %s\n", owner->rank_, trace.status().to_string().c_str());
  return nullptr;
}

// Tables that do not fit the kernel's argument go to memory that the kernel reads.
Status DeviceEngine::Launch::lay_out() {
  args.num_units = static_cast<uint32_t>(units.size());
  args.num_calls = static_cast<uint32_t>(calls.size());
  const LaunchTables all{units, calls};
  const uint64_t bytes = all.write(nullptr);
  std::byte* to = args.own_tables;
  if (bytes > LaunchArgs::kOwnBytes) {
    RONDO_TRY_ASSIGN(tables, members[0]->engine->take_tables(bytes));
    to = tables.as();
    args.more_tables = reinterpret_cast<const std::byte*>(tables.on_device());
  }
  all.write(to);
  return {};
}

// Pinned memory for the tables of a launch. The watcher gives it back when the launch has ended.
Expected<cuda::PinnedMemory> DeviceEngine::take_tables(uint64_t bytes) {
  bytes = std::bit_ceil(bytes);  // few sizes, so that memory of one launch mostly fits another
  {
    const std::lock_guard lock(watch_mutex_);
    const auto it = std::find_if(free_tables_.begin(), free_tables_.end(),
                                 [&](const cuda::PinnedMemory& m) { return m.size_bytes() == bytes; });
    if (it != free_tables_.end()) {
      std::swap(*it, free_tables_.back());
      cuda::PinnedMemory found = std::move(free_tables_.back());
      free_tables_.pop_back();
      return found;
    }
  }
  return cuda::PinnedMemory::make_unset(bytes);
}

Status DeviceEngine::launch(Launch& l) {
  const cuda::Stream stream = l.stream();
  JoinedStreams joined(stream);
  for (const Item* m : l.members) joined.add(m->stream());
  RONDO_TRY(joined.begin());
  for (const auto& [e, blocks] : l.shares) RONDO_TRY(e->begin_in(stream));
  void* params[] = {&l.args};
  cuda::LaunchConfig config{l.blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, nullptr, 0};
  const bool captured = cuda::captures(stream);
  if (l.trace != nullptr) {
    RONDO_TRY(l.trace->begin(stream));
    l.args.trace = l.trace->on_device();
  }
  DeviceEngine& first = *l.members[0]->engine;
  RONDO_TRY(first.kernels_->launch_in_order(config, l.function, params, Launch::parts_of(l.shares), l.told));
  RONDO_TRY(joined.end());
  if (captured && l.tables.size_bytes() != 0)  // replays read it
    first.transport_.keep(std::make_shared<cuda::PinnedMemory>(std::move(l.tables)));
  for (size_t i = 0; i < l.members.size(); ++i) {
    Outstanding o;
    o.trace = l.trace;
    o.call = static_cast<uint32_t>(i);  // calls and members have the same order
    if (i == 0) o.tables = std::move(l.tables);
    RONDO_TRY(l.members[i]->engine->end_in(stream, *l.members[i], std::move(o)));
  }
  return {};
}

// The kernel's form of a call. The regions of this rank's buffers are looked up each time, because memory may have been
// freed and allocated again at the same address.
LaunchCall DeviceEngine::launch_call(const Item& item) {
  const Call& r = *item.call;
  const DevicePlan& plan = *item.plan;
  LaunchCall c{};
  c.program = plan.main.on_device.get();
  c.counts = plan.main.counts;
  c.variable = plan.request.counts.get();
  c.comm = comm_.as<DeviceComm>();
  c.control = reinterpret_cast<DeviceControl*>(control_.on_device());
  c.in = static_cast<const std::byte*>(r.in);
  c.out = static_cast<std::byte*>(r.out);
  c.scratch = scratch_.as() + item.scratch_offset;
  c.premul_at = r.premul_at;
  std::memcpy(c.premul, r.premul, sizeof c.premul);
  c.deadline_ns = r.deadline_ns;
  if (!cuda::captures(item.stream())) {  // a replay would repeat its number
    const Collective collective = r.shape.collective;
    c.index =
        call_index(is_point_to_point(collective) ? ++num_messages_[{r.shape.root, collective == Collective::kRecv}]
                                                 : ++num_calls_);
  }
  if (plan.fallback.program == nullptr) return c;
  const cuda::CurrentContext current(transport_.context());
  static_assert(SharedRegions::kNowhere == kRegionNowhere && SharedRegions::kMaxRegions < kRegionNothing);
  c.other = {plan.fallback.on_device.get(), plan.fallback.counts};
  c.in_region = r.in_bytes == 0 ? kRegionNothing : transport_.regions().find(r.in, r.in_bytes);
  c.out_region = r.out_bytes == 0 ? kRegionNothing : transport_.regions().find(r.out, r.out_bytes);
  return c;
}

// Distributes calls to launches. Each communicator's calls keep their order, in as few launches as their kernels need.
// Messages between two ranks come last, all at once as far as they fit, because they may wait for one another. The rest
// goes to further launches: communicators in the order of the group, messages by the distance of their ranks. A message
// has the same position in both its ranks' orders. Therefore the first unfinished message is running on both.
class DeviceEngine::Rounds {
 public:
  explicit Rounds(std::span<const Item> items) {
    std::vector<uint64_t> communicators;
    for (const Item& item : items) {
      const CallShape& r = item.call->shape;
      const bool message = is_point_to_point(r.collective);
      const Rank direction = message ? 2 * r.root + (r.collective == Collective::kSend) : 0;
      const uint64_t communicator = item.engine->communicator();
      const auto known = std::find(communicators.begin(), communicators.end(), communicator);
      const auto place = message ? item.engine->distance_of(r) : static_cast<int>(known - communicators.begin());
      if (known == communicators.end()) communicators.push_back(communicator);
      auto q = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& o) {
        return o.engine == item.engine && o.message == message && o.direction == direction;
      });
      if (q == queues_.end()) q = queues_.insert(q, {item.engine, message, place, direction, {}});
      q->calls.push_back(&item);
    }
    std::stable_sort(queues_.begin(), queues_.end(), [](const Queue& a, const Queue& b) {
      return std::tie(a.message, a.place) < std::tie(b.message, b.place);
    });
  }

  bool empty() const {
    return std::all_of(queues_.begin(), queues_.end(), [](const Queue& q) { return q.rest().empty(); });
  }

  /// Errors: kExhausted.
  Expected<Launch> next() {
    const Queue& first =
        *std::find_if(queues_.begin(), queues_.end(), [](const Queue& q) { return !q.rest().empty(); });
    Launch l;
    l.function = first.rest()[0]->plan->function;
    l.context = first.engine->transport_.context();
    for (auto at = queues_.begin(), end = at; at != queues_.end(); at = end) {
      end = std::find_if(at, queues_.end(),
                         [&](const Queue& q) { return q.message != at->message || q.place != at->place; });
      // All units of a place, or none of them.
      std::vector<std::pair<Queue*, Unit>> units;
      Launch::Shares shares = l.shares;
      uint32_t blocks = l.blocks;
      for (auto q = at; q != end; ++q) {
        if (q->message != first.message || q->engine->transport_.context() != l.context) continue;
        const Unit u = q->unit(l.function);
        if (u.num_calls == 0) continue;
        units.emplace_back(&*q, u);
        shares[q->engine] += u.lanes * u.channels;
        blocks += u.lanes * u.channels;
      }
      if (!l.calls.empty() && blocks > room_of(Launch::parts_of(shares))) break;
      l.shares = std::move(shares);
      for (const auto& [queue, u] : units) {
        l.add(queue->rest().first(u.num_calls), u.lanes, u.channels);
        queue->launched += u.num_calls;
      }
    }
    if (const uint32_t room = room_of(Launch::parts_of(l.shares)); l.blocks > room)
      return make_error(StatusCode::kExhausted,
                        "rank {}: a group's launch needs {} blocks and the device holds {} at once: put fewer "
                        "communicators into a group, or set RONDO_DEVICE_BLOCKS lower",
                        l.members[0]->engine->rank_, l.blocks, room);
    return l;
  }

 private:
  struct Unit {
    size_t num_calls = 0;
    uint32_t lanes = 0, channels = 0;
  };
  /// Calls that run one after the other: a rank's collectives, or its messages to or from one peer.
  struct Queue {
    DeviceEngine* engine;
    bool message;
    int place;       // for messages their distance, for other calls the communicator's index
    Rank direction;  // for messages: the peer and the direction
    std::vector<const Item*> calls;
    size_t launched = 0;
    std::span<const Item* const> rest() const { return std::span(calls).subspan(launched); }
    /// The next calls, as long as they need this kernel.
    Unit unit(cuda::Function function) const {
      Unit u;
      for (const Item* item : rest()) {
        if (item->plan->function != function) break;
        ++u.num_calls;
        u.lanes = std::max(u.lanes, item->plan->num_lanes);
        u.channels = std::max(u.channels, item->plan->num_channels);
      }
      return u;
    }
  };

  std::vector<Queue> queues_;
};

Status DeviceEngine::launch_rounds(std::span<const Item> items) {
  std::vector<Launch> launches;
  for (Rounds rounds(items); !rounds.empty();) {
    RONDO_TRY_ASSIGN(auto l, rounds.next());
    launches.push_back(std::move(l));
  }
  for (Launch& l : launches) RONDO_TRY(l.find_events());
  // Allocate tables and traces before any launch waits on a device, because an allocation may wait for a launch.
  for (Launch& l : launches) {
    cuda::CurrentContext current(l.context);
    const cuda::OutsideCapture outside;
    RONDO_TRY(l.lay_out());
    if (!cuda::captures(l.stream())) l.trace = l.open_trace();
  }
  for (Launch& l : launches) {
    cuda::CurrentContext current(l.context);
    RONDO_TRY(launch(l));
  }
  return {};
}

}  // namespace rondo
