// Issues planned calls to streams: the order of a communicator's calls, and launches of the interpreter.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "base/round_up.h"
#include "device/driver/capture.h"
#include "device/engine/device_engine.h"

namespace rondo {
namespace {


}  // namespace

Status DeviceEngine::begin_in(cuda::Stream stream) {
  const cuda::Driver* d = cuda::driver();
  {  // a long call can fill the driver's queue, and it may need messages of its own first part to continue
    const std::lock_guard lock(watch_mutex_);
    issuing_ = true;
    transport_.attend(true);
    watch_changed_.notify_all();
  }
  if (cuda::captures(stream)) {
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

Status DeviceEngine::end_in(cuda::Stream stream, const Item& item, Left left) {
  const cuda::Driver* d = cuda::driver();
  const Call& call = *item.call;
  // Messages between two ranks have no number in the order that all ranks share, and are not posted on its status page.
  const Collective c = call.shape.collective;
  const uint64_t sequence = is_point_to_point(c) ? 0 : next_sequence_++;
  const uint64_t number = sequence != 0 ? 0 : ++message_numbers_[{call.shape.root, c == Collective::kRecv}];
  if (sequence != 0) transport_.page(rank_)->post(sequence, item.plan->program->operation, call.tag);
  if (cuda::captures(stream)) {
    if (sequence != 0) transport_.page(rank_)->finish(sequence);
    RONDO_TRY(cuda::check(d->event_record_with_flags(graph_serial_.get(), stream, cuda::kEventRecordExternal),
                          "cuEventRecordWithFlags"));
    const std::lock_guard lock(watch_mutex_);
    replayed_ = true;
    issuing_ = false;
    item.end({});  // it runs whenever the graph does
    watch_changed_.notify_all();
    return {};
  }
  RONDO_TRY(cuda::check(d->event_record(serial_.get(), stream), "cuEventRecord"));
  last_stream_ = stream;
  any_ = true;
  Outstanding o{sequence,
                {},
                item.plan->program->operation,
                call.tag,
                monotonic_ns(),
                call.deadline_ns,
                call.work,
                item.plan,
                std::move(left.tables),
                std::move(left.trace),
                left.call,
                number};
  const std::lock_guard lock(watch_mutex_);
  if (free_events_.empty()) {
    RONDO_TRY_ASSIGN(o.event, cuda::OwnedEvent::make());
  } else {
    o.event = std::move(free_events_.back());
    free_events_.pop_back();
  }
  RONDO_TRY(cuda::check(d->event_record(o.event.get(), stream), "cuEventRecord"));
  outstanding_.push_back(std::move(o));
  issuing_ = false;
  watch_changed_.notify_all();
  return {};
}

// One launch: a kernel, its calls in units, and their owners.
struct DeviceEngine::Launch {
  cuda::Context context = nullptr;
  cuda::Function function = nullptr;
  std::shared_ptr<LaunchTrace> trace;  // nullptr: not traced, or captured
  std::vector<DeviceUnit> units;
  std::vector<DeviceCall> calls;
  std::vector<const Item*> members;
  uint32_t blocks = 0;
  std::set<const DeviceEngine*> engines;
  std::vector<cuda::Event> told;  // callers' events, each once
  bool follows = false;           // waits until the earlier launches on its device have ended
  cuda::OwnedEvent ended;

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
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "rank {}: {} calls of a captured group have different launch_events: one launch can record only one",
            members[0]->engine->rank_, told.size()));
  }

  /// Memory for the records of traced calls. nullptr if no call is traced, or if allocation failed; that is only
  /// printed on stderr, because no call depends on it.
  std::shared_ptr<LaunchTrace> open_trace() const;

  void add_unit(uint32_t lanes, uint32_t channels, uint32_t first_call) {
    units.push_back({blocks, lanes, channels, first_call, static_cast<uint32_t>(calls.size()) - first_call});
    blocks += lanes * channels;
  }
};

std::shared_ptr<LaunchTrace> DeviceEngine::Launch::open_trace() const {
  uint64_t records = 0;
  DeviceEngine* owner = nullptr;
  for (const Item* m : members) {
    const std::lock_guard lock(m->engine->watch_mutex_);
    if (!m->engine->tracing_.on()) continue;
    if (owner == nullptr) owner = m->engine;
    records += most_records(m->plan->header);
    if (m->plan->fallback != nullptr) records += most_records(m->plan->header_fallback);
  }
  if (owner == nullptr) return nullptr;
  const std::lock_guard lock(owner->watch_mutex_);
  auto trace = owner->tracing_.room_for(records);
  if (trace.ok()) return std::move(*trace);
  std::fprintf(stderr, "rondo: rank %d: a call is not traced: %s\n", owner->rank_, trace.status().to_string().c_str());
  return nullptr;
}

// Data that does not fit the kernel's argument goes to memory that the kernel reads.
Status DeviceEngine::Launch::lay_out() {
  args.num_units = static_cast<uint32_t>(units.size());
  args.num_calls = static_cast<uint32_t>(calls.size());
  if (units.size() <= LaunchArgs::kMaxUnits && calls.size() <= LaunchArgs::kMaxCalls) {
    std::copy(units.begin(), units.end(), args.units);
    std::copy(calls.begin(), calls.end(), args.calls);
    return {};
  }
  const uint64_t units_bytes = round_up(units.size() * sizeof(DeviceUnit), 64);
  RONDO_TRY_ASSIGN(tables, cuda::PinnedMemory::make(units_bytes + calls.size() * sizeof(DeviceCall)));
  std::memcpy(tables.as(), units.data(), units.size() * sizeof(DeviceUnit));
  std::memcpy(tables.as() + units_bytes, calls.data(), calls.size() * sizeof(DeviceCall));
  args.more_units = reinterpret_cast<const DeviceUnit*>(tables.on_device());
  args.more_calls = reinterpret_cast<const DeviceCall*>(tables.on_device() + units_bytes);
  return {};
}

Status DeviceEngine::launch(Launch& l) {
  const cuda::Driver* d = cuda::driver();
  LaunchArgs& args = l.args;
  const cuda::Stream stream = l.stream();
  std::vector<cuda::Stream> others;
  for (const Item* m : l.members) {
    const cuda::Stream s = m->stream();
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
  for (const Item* m : l.members)
    if (std::find(begun.begin(), begun.end(), m->engine) == begun.end()) {
      RONDO_TRY(m->engine->begin_in(stream));
      begun.push_back(m->engine);
    }
  void* params[] = {&args};
  cuda::LaunchConfig config{l.blocks, 1, 1, kBlockThreads, 1, 1, 0, stream, nullptr, 0};
  const bool captured = cuda::captures(stream);
  if (l.trace != nullptr) {
    RONDO_TRY(l.trace->begin(stream));
    args.trace = l.trace->on_device();
  }
  DeviceEngine& first = *l.members[0]->engine;
  RONDO_TRY(first.kernels_->launch_in_order(config, l.function, params, captured, l.told));
  if (!others.empty()) RONDO_TRY(cuda::check(d->event_record(join.get(), stream), "cuEventRecord"));
  for (const cuda::Stream s : others)
    RONDO_TRY(cuda::check(d->stream_wait_event(s, join.get(), 0), "cuStreamWaitEvent"));
  if (captured && l.tables.size_bytes() != 0)  // replays read it
    first.transport_.keep(std::make_shared<cuda::PinnedMemory>(std::move(l.tables)));
  for (size_t i = 0; i < l.members.size(); ++i) {
    Left left{{}, l.trace, static_cast<uint32_t>(i)};  // calls and members have the same order
    if (i == 0) left.tables = std::move(l.tables);
    RONDO_TRY(l.members[i]->engine->end_in(stream, *l.members[i], std::move(left)));
  }
  return {};
}

// The kernel's form of a call. The regions of this rank's buffers are looked up each time, because memory may have been
// freed and allocated again at the same address.
DeviceCall DeviceEngine::device_call(const Item& item) {
  const Call& r = *item.call;
  const DevicePlan& plan = *item.plan;
  DeviceCall c{};
  c.program = reinterpret_cast<const DeviceProgram*>(plan.lowered);
  c.comm = comm_.as<DeviceComm>();
  c.control = reinterpret_cast<DeviceControl*>(control_.on_device());
  c.in = static_cast<const std::byte*>(r.in);
  c.out = static_cast<std::byte*>(r.out);
  c.scratch = scratch_.as() + item.scratch_offset;
  c.premul_at = r.premul_at;
  std::memcpy(c.premul, r.premul, sizeof c.premul);
  c.deadline_ns = r.deadline_ns;
  c.tag = r.tag;
  if (!cuda::captures(item.stream())) {  // a replay would repeat its number
    const Collective collective = r.shape.collective;
    c.index =
        call_index(is_point_to_point(collective) ? ++num_messages_[{r.shape.root, collective == Collective::kRecv}]
                                                 : ++num_calls_);
  }
  if (plan.fallback == nullptr) return c;
  const cuda::CurrentContext current(transport_.context());
  static_assert(SharedRegions::kNowhere == kRegionNowhere && SharedRegions::kMaxRegions < kRegionNothing);
  c.fallback = reinterpret_cast<const DeviceProgram*>(plan.lowered_fallback);
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
      if (item.plan->program->num_loops == 0) {  // nothing to move, on any rank
        item.end({});
        continue;
      }
      const CallShape& r = item.call->shape;
      Pending p{&item, is_point_to_point(r.collective), 0, 0};
      const uint64_t communicator = item.engine->communicator();
      const auto it = std::find(communicators.begin(), communicators.end(), communicator);
      p.place = p.message ? item.engine->distance_of(r) : static_cast<int>(it - communicators.begin());
      p.direction = p.message ? 2 * r.root + (r.collective == Collective::kSend) : 0;
      if (it == communicators.end()) communicators.push_back(communicator);
      pending_.push_back(p);
    }
    std::stable_sort(pending_.begin(), pending_.end(), [](const Pending& a, const Pending& b) {
      return std::tie(a.message, a.place) < std::tie(b.message, b.place);
    });
  }

  bool empty() const { return pending_.empty(); }

  /// Errors: kExhausted.
  Expected<Launch> next() {
    const Pending first = pending_.front();
    Launch l;
    l.function = first.item->plan->function;
    l.context = context_of(first);
    l.engines = engines_at(first, l);
    Pending reached = first;
    std::vector<std::pair<const DeviceEngine*, Rank>> taken;  // each engine and direction has one unit
    const std::vector<Pending> leads = pending_;
    for (const Pending& lead : leads) {
      if (lead.message != first.message || context_of(lead) != l.context) continue;
      if (lead.place != reached.place) {
        std::set<const DeviceEngine*> engines = engines_at(lead, l);
        engines.insert(l.engines.begin(), l.engines.end());
        if (l.blocks + blocks_at(lead, l) > room_of(engines)) break;
        l.engines = std::move(engines);
        reached = lead;
      }
      const std::pair<const DeviceEngine*, Rank> unit{lead.item->engine, lead.direction};
      if (std::find(taken.begin(), taken.end(), unit) != taken.end()) continue;
      taken.push_back(unit);
      const Unit u = unit_of(lead, l.function);
      if (u.calls.empty()) continue;  // goes to the next launch
      const auto first_call = static_cast<uint32_t>(l.calls.size());
      for (const Item* item : u.calls) {
        l.calls.push_back(item->engine->device_call(*item));
        l.members.push_back(item);
      }
      l.add_unit(u.lanes, u.channels, first_call);
      std::erase_if(pending_, [&](const Pending& p) {
        return std::find(u.calls.begin(), u.calls.end(), p.item) != u.calls.end();
      });
    }
    if (const uint32_t room = room_of(l.engines); l.blocks > room)
      return Status(StatusCode::kExhausted,
                    fmt::format("rank {}: a group's launch needs {} blocks and the device holds {} at once: put fewer "
                                "communicators into a group, or set RONDO_DEVICE_BLOCKS lower",
                                l.members[0]->engine->rank_, l.blocks, room));
    return l;
  }

  /// Number of blocks of these engines that can be resident next to those of other processes: a share for each rank of
  /// a communicator.
  static uint32_t room_of(const std::set<const DeviceEngine*>& engines) {
    std::map<uint64_t, uint32_t> ranks;
    uint32_t share = UINT32_MAX, most = 0;
    for (const DeviceEngine* e : engines) {
      most = std::max(most, ++ranks[e->communicator()]);
      share = std::min(share, e->world_.resident_blocks);
    }
    return share * most;
  }

 private:
  struct Pending {
    const Item* item;
    bool message;
    int place;       // for a message its distance, for other calls the communicator's index
    Rank direction;  // for a message: the peer and the direction
  };
  struct Unit {
    std::vector<const Item*> calls;
    uint32_t lanes = 0, channels = 0;
  };

  static cuda::Context context_of(const Pending& p) { return p.item->engine->transport_.context(); }

  // The calls of one engine and direction, in order, as long as they need this kernel.
  Unit unit_of(const Pending& lead, cuda::Function function) const {
    Unit u;
    for (const Pending& p : pending_) {
      if (p.item->engine != lead.item->engine || p.message != lead.message || p.direction != lead.direction) continue;
      const DevicePlan& plan = *p.item->plan;
      if (plan.function != function) break;
      u.calls.push_back(p.item);
      u.lanes = std::max(u.lanes, plan.num_lanes);
      u.channels = std::max(u.channels, plan.num_channels);
    }
    return u;
  }

  // Calls `fn` with the first pending call of each unit at the place of `at` on the launch's device.
  template <class Fn>
  void each_unit(const Pending& at, const Launch& l, Fn fn) const {
    std::set<std::pair<const DeviceEngine*, Rank>> seen;
    for (const Pending& p : pending_)
      if (p.message == at.message && p.place == at.place && context_of(p) == l.context &&
          seen.insert({p.item->engine, p.direction}).second)
        fn(p);
  }
  uint32_t blocks_at(const Pending& at, const Launch& l) const {
    uint32_t blocks = 0;
    each_unit(at, l, [&](const Pending& p) {
      const Unit u = unit_of(p, l.function);
      blocks += u.lanes * u.channels;
    });
    return blocks;
  }
  std::set<const DeviceEngine*> engines_at(const Pending& at, const Launch& l) const {
    std::set<const DeviceEngine*> engines;
    each_unit(at, l, [&](const Pending& p) {
      if (!unit_of(p, l.function).calls.empty()) engines.insert(p.item->engine);
    });
    return engines;
  }

  std::vector<Pending> pending_;
};

Status DeviceEngine::launch_rounds(std::span<const Item> items) {
  std::vector<Launch> launches;
  for (Rounds rounds(items); !rounds.empty();) {
    RONDO_TRY_ASSIGN(auto l, rounds.next());
    launches.push_back(std::move(l));
  }
  for (Launch& l : launches) RONDO_TRY(l.find_events());
  // Launches that do not fit next to earlier ones on their device begin when those have ended. Otherwise they would use
  // the blocks of another rank.
  std::map<cuda::Context, std::pair<uint32_t, std::set<const DeviceEngine*>>> beside;
  for (Launch& l : launches) {
    auto& [blocks, engines] = beside[l.context];
    engines.insert(l.engines.begin(), l.engines.end());
    blocks += l.blocks;
    if (blocks <= Rounds::room_of(engines)) continue;
    l.follows = true;
    blocks = l.blocks;
    engines = l.engines;
  }
  // Allocate tables and traces before any launch waits on a device, because an allocation may wait for a launch.
  for (Launch& l : launches) {
    cuda::CurrentContext current(l.context);
    const cuda::OutsideCapture outside;
    RONDO_TRY(l.lay_out());
    if (!cuda::captures(l.stream())) l.trace = l.open_trace();
  }
  const cuda::Driver* d = cuda::driver();
  for (size_t i = 0; i < launches.size(); ++i) {
    Launch& l = launches[i];
    cuda::CurrentContext current(l.context);
    for (size_t before = 0; before < i && l.follows; ++before)
      if (launches[before].context == l.context)
        RONDO_TRY(cuda::check(d->stream_wait_event(l.stream(), launches[before].ended.get(), 0), "cuStreamWaitEvent"));
    RONDO_TRY(launch(l));
    if (launches.size() == 1) break;
    RONDO_TRY_ASSIGN(l.ended, cuda::OwnedEvent::make());
    RONDO_TRY(cuda::check(d->event_record(l.ended.get(), l.stream()), "cuEventRecord"));
  }
  return {};
}

}  // namespace rondo
