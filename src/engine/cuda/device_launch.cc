// How planned calls get into streams: the order of a communicator's calls, and launches of the interpreter.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "cuda/capture.h"
#include "engine/cuda/device_engine.h"
#include "transport/round_up.h"

namespace rondo {
namespace {

constexpr uint32_t kBlockThreads = 512;

}  // namespace

Status DeviceEngine::begin_in(cuda::Stream stream) {
  const cuda::Driver* d = cuda::driver();
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

Status DeviceEngine::end_in(cuda::Stream stream, const DeviceRequest& request, const std::shared_ptr<DevicePlan>& plan,
                            Left left) {
  const cuda::Driver* d = cuda::driver();
  // Messages between two ranks have no place in the order that all ranks share, nor on the board of it.
  const Collective c = plan->request.collective;
  const uint64_t sequence = is_point_to_point(c) ? 0 : next_sequence_++;
  const uint64_t number = sequence != 0 ? 0 : ++message_numbers_[{plan->request.root, c == Collective::kRecv}];
  if (sequence != 0) transport_.board(rank_)->post(sequence, plan->program->operation, request.tag);
  if (cuda::captures(stream)) {
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
  cuda::Context context = nullptr;
  cuda::Function function = nullptr;
  std::shared_ptr<LaunchTrace> trace;  // nullptr: nobody is traced, or it is captured
  std::vector<DeviceUnit> units;
  std::vector<DeviceCall> calls;
  std::vector<Member> members;
  uint32_t blocks = 0;

  /// Room for the records of the calls whose communicators are traced; nullptr: none is, or there is none to be had,
  /// which is said on stderr, since no call depends on it.
  std::shared_ptr<LaunchTrace> open_trace() const;

  void add_unit(uint32_t lanes, uint32_t channels, uint32_t first_call) {
    units.push_back({blocks, lanes, channels, first_call, static_cast<uint32_t>(calls.size()) - first_call});
    blocks += lanes * channels;
  }
};

std::shared_ptr<LaunchTrace> DeviceEngine::Launch::open_trace() const {
  uint64_t records = 0;
  DeviceEngine* keeper = nullptr;
  for (const Member& m : members) {
    const std::lock_guard lock(m.entry->engine->watch_mutex_);
    if (!m.entry->engine->tracing_.on()) continue;
    if (keeper == nullptr) keeper = m.entry->engine;
    records += most_records(m.plan->header);
    if (m.plan->fallback != nullptr) records += most_records(m.plan->header_fallback);
  }
  if (keeper == nullptr) return nullptr;
  const std::lock_guard lock(keeper->watch_mutex_);
  auto trace = keeper->tracing_.room_for(records);
  if (trace.ok()) return std::move(*trace);
  std::fprintf(stderr, "rondo: rank %d: a call is not traced: %s\n", keeper->rank_, trace.status().to_string().c_str());
  return nullptr;
}

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
  const bool captured = cuda::captures(stream);
  if (l.trace != nullptr) {
    RONDO_TRY(l.trace->begin(stream));
    args.trace = l.trace->on_device();
  }
  DeviceEngine& first = *l.members[0].entry->engine;
  std::vector<cuda::Event> told;
  for (const Launch::Member& m : l.members)
    if (m.entry->request->launch_event != nullptr) told.push_back(m.entry->request->launch_event);
  RONDO_TRY(first.kernels_->launch_in_order(config, l.function, params, captured, told));
  if (!others.empty()) RONDO_TRY(cuda::check(d->event_record(join.get(), stream), "cuEventRecord"));
  for (const cuda::Stream s : others)
    RONDO_TRY(cuda::check(d->stream_wait_event(s, join.get(), 0), "cuStreamWaitEvent"));
  if (captured && tables.size_bytes() != 0)  // replays read it
    first.transport_.keep(std::make_shared<cuda::PinnedMemory>(std::move(tables)));
  for (const Launch::Member& m : l.members) {
    Left left{{}, l.trace, static_cast<uint32_t>(&m - l.members.data())};  // calls stand in the order of members
    if (&m == &l.members[0]) left.tables = std::move(tables);
    RONDO_TRY(m.entry->engine->end_in(stream, *m.entry->request, m.plan, std::move(left)));
  }
  return {};
}

// A call as the kernel finds it. Where this rank's buffers lie is looked up each time: memory may have been freed, and
// allocated anew at the same address.
DeviceCall DeviceEngine::device_call(const DeviceRequest& r, const DevicePlan& plan) const {
  DeviceCall c{};
  c.program = reinterpret_cast<const DeviceProgram*>(plan.lowered);
  c.comm = comm_.as<DeviceComm>();
  c.control = reinterpret_cast<DeviceControl*>(control_.on_device());
  c.in = static_cast<const std::byte*>(r.in);
  c.out = static_cast<std::byte*>(r.out);
  c.scratch = scratch_.as() + r.scratch_offset;
  c.premul_at = r.premul_at;
  std::memcpy(c.premul, r.premul, sizeof c.premul);
  c.deadline_ns = static_cast<uint64_t>(r.deadline_s * 1e9);
  c.tag = r.tag;
  if (plan.fallback == nullptr) return c;
  const cuda::CurrentContext current(transport_.context());
  static_assert(SharedRegions::kNowhere == kRegionNowhere && SharedRegions::kMaxRegions < kRegionNothing);
  c.fallback = reinterpret_cast<const DeviceProgram*>(plan.lowered_fallback);
  c.in_region = r.in_bytes == 0 ? kRegionNothing : transport_.regions().find(r.in, r.in_bytes);
  c.out_region = r.out_bytes == 0 ? kRegionNothing : transport_.regions().find(r.out, r.out_bytes);
  return c;
}

// The calls of each communicator in their order, as few launches as their kernels need; messages between two ranks come
// last, all at once as far as they fit, since they may wait for one another. Those that do not fit are left for further
// launches, by how far apart their ranks stand: a message stands at the same place in the order of both its ranks, so
// the first that has not arrived anywhere is always under way on both.
Status DeviceEngine::launch_rounds(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans) {
  struct Pending {
    size_t index;
    bool done = false;
  };
  auto distance = [&](size_t i) { return entries[i].engine->distance_of(plans[i]->request); };
  std::vector<Pending> pending;
  for (size_t i = 0; i < entries.size(); ++i) {
    pending.push_back({i});
    if (plans[i]->program->num_loops != 0) continue;
    pending.back().done = true;  // nothing to move, on any rank
    end_operation(entries[i].request->op, {});
  }
  auto messages = [&](size_t i) { return is_point_to_point(plans[i]->request.collective); };
  std::stable_sort(pending.begin(), pending.end(),
                   [&](const Pending& a, const Pending& b) { return distance(a.index) < distance(b.index); });
  const auto direction = [&](size_t i) {
    const PlanRequest& r = plans[i]->request;
    return messages(i) ? 2 * r.root + (r.collective == Collective::kSend) : 0;
  };
  // How many blocks the messages of one distance take on a device, each engine and direction a unit of its own.
  auto blocks_at = [&](Rank at, cuda::Context context) {
    std::map<std::pair<const DeviceEngine*, Rank>, uint32_t> units;
    for (const Pending& p : pending) {
      const DeviceEngine* engine = entries[p.index].engine;
      if (p.done || !messages(p.index) || distance(p.index) != at || engine->transport_.context() != context) continue;
      uint32_t& blocks = units[{engine, direction(p.index)}];
      blocks = std::max(blocks, plans[p.index]->num_lanes * plans[p.index]->num_channels);
    }
    return std::accumulate(units.begin(), units.end(), 0u, [](uint32_t sum, const auto& u) { return sum + u.second; });
  };
  // How many may be resident at once beside those of other processes: a share for each rank of a communicator.
  auto room_of = [&](cuda::Context context) {
    std::map<const OperationBoard*, std::set<const DeviceEngine*>> ranks;  // rank 0's board stands for a communicator
    uint32_t share = UINT32_MAX;
    size_t most = 0;
    for (const Entry& e : entries) {
      if (e.engine->transport_.context() != context) continue;
      auto& engines = ranks[e.engine->transport_.board(0)];
      engines.insert(e.engine);
      most = std::max(most, engines.size());
      share = std::min(share, e.engine->world_.resident_blocks);
    }
    return share * static_cast<uint32_t>(most);
  };
  std::vector<Launch> launches;
  for (const bool point_to_point : {false, true})
    for (;;) {
      const auto first = std::find_if(pending.begin(), pending.end(),
                                      [&](const Pending& p) { return !p.done && messages(p.index) == point_to_point; });
      if (first == pending.end()) break;
      Launch l;
      l.function = plans[first->index]->function;
      const cuda::Context context = entries[first->index].engine->transport_.context();
      const uint32_t room = room_of(context);
      Rank reached = distance(first->index);
      std::vector<std::pair<const DeviceEngine*, Rank>> units_of;  // each engine, and each of its peers, has a unit
      for (Pending& lead : pending) {
        if (lead.done || messages(lead.index) != point_to_point) continue;
        const DeviceEngine* engine = entries[lead.index].engine;
        if (engine->transport_.context() != context) continue;
        if (const Rank d = distance(lead.index); point_to_point && d != reached) {
          if (l.blocks + blocks_at(d, context) > room) break;  // the next launch's
          reached = d;
        }
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
          l.calls.push_back(engine->device_call(*entries[i].request, *plans[i]));
          l.members.push_back({&entries[i], plans[i]});
          lanes = std::max(lanes, plans[i]->num_lanes);
          channels = std::max(channels, plans[i]->num_channels);
          p.done = true;
        }
        if (l.calls.size() != first_call) l.add_unit(lanes, channels, first_call);
      }
      if (l.blocks > room)
        return Status(
            StatusCode::kExhausted,
            fmt::format("rank {}: a group's launch needs {} blocks and the device holds {} at once: put fewer "
                        "communicators into a group, or set RONDO_DEVICE_CHANNELS lower",
                        l.members[0].entry->engine->rank_, l.blocks, room));
      l.context = context;
      launches.push_back(std::move(l));
    }
  // Memory for traces is taken before any of them waits on a device, since taking it may wait for one.
  for (Launch& l : launches) {
    cuda::CurrentContext current(l.context);
    if (!cuda::captures(l.members[0].entry->request->stream)) l.trace = l.open_trace();
  }
  for (Launch& l : launches) {
    cuda::CurrentContext current(l.context);
    RONDO_TRY(launch(l));
  }
  return {};
}

}  // namespace rondo
