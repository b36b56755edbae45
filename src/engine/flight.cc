// Collects an OperationQueue's part of a flight record: its status page, the state of each lane of its operations, and
// the status pages and processes of the other ranks that this rank can see. This is a slow path: it computes everything
// when it is called.
#include <unistd.h>

#include "base/process_name.h"
#include "engine/queue.h"
#include "plan/describe_program.h"

namespace rondo {
namespace {

constexpr uint64_t kPeerOperations = 4;  // of each peer's status page

FlightOperation flight_operation(const PostedOperation& posted, uint64_t last_finished) {
  return {posted, algorithm_name(posted.shape), posted.finished_ns != 0 || posted.sequence <= last_finished};
}

// Returns the operations of a status page, the newest first.
std::vector<FlightOperation> read_page(StatusPage& page, uint64_t most) {
  std::vector<FlightOperation> found;
  const uint64_t last = page.last_posted(), finished = page.last_finished();
  for (uint64_t s = last; s > 0 && last - s < most; --s)
    if (const auto posted = page.read(s)) found.push_back(flight_operation(*posted, finished));
  return found;
}

// Returns a number that no other communicator of this host is likely to have, from the process and the time.
uint64_t new_communicator_id() {
  uint64_t h = (ticks() ^ static_cast<uint64_t>(getpid()) << 40) * 0x9E3779B97F4A7C15u;
  h ^= h >> 31;
  h *= 0xBF58476D1CE4E5B9u;
  return (h >> 32) | 1;
}

}  // namespace

void OperationQueue::sign_page() {
  auto put = [](uint64_t& w, uint64_t v) { std::atomic_ref(w).store(v, std::memory_order_relaxed); };
  put(page_.owner_pid, static_cast<uint64_t>(getpid()));
  put(page_.owner_pid_namespace, this_pid_namespace());
  const uint64_t agreed = transport_.agreed_id();
  if (rank_ == 0) put(page_.communicator, agreed != 0 ? agreed : new_communicator_id());
}

uint64_t OperationQueue::communicator_id() {
  if (const uint64_t agreed = transport_.agreed_id()) return agreed;
  StatusPage* first = transport_.page(0);
  return first != nullptr ? std::atomic_ref(first->communicator).load(std::memory_order_relaxed) : 0;
}

FlightRecord OperationQueue::flight_record(bool lanes) {
  FlightRecord f;
  f.identity = {communicator_id(), rank_, nranks_};
  f.pid = getpid();
  f.time = read_clock_pair();
  f.ns_per_tick = ns_per_tick(made_, f.time);
  f.status = failure();
  f.aborted_by = transport_.aborted_by();
  if (auto loss = transport_.find_lost()) {
    f.lost_rank = loss->rank;
    f.lost_how = std::move(loss->how);
  }
  f.last_posted = page_.last_posted();
  f.last_finished = page_.last_finished();
  f.operations = read_page(page_, StatusPage::kRecords);
  f.current_known = lanes;
  if (lanes && alone_ != nullptr) f.current.push_back(look_at(*alone_));
  if (lanes)
    for (const Operation* op : active_) f.current.push_back(look_at(*op));
  if (lanes)
    for (const Operation* op : matcher_.receives()) f.current.push_back(look_at(*op));
  for (Rank r = 0; r < nranks_; ++r) {
    StatusPage* page = r != rank_ ? transport_.page(r) : nullptr;
    if (page == nullptr) continue;
    auto get = [](uint64_t& w) { return std::atomic_ref(w).load(std::memory_order_relaxed); };
    FlightPeer p;
    p.rank = r;
    p.pid = static_cast<int64_t>(get(page->owner_pid));
    p.process = process_state(get(page->owner_pid), get(page->owner_pid_namespace));
    p.last_posted = page->last_posted();
    p.last_finished = page->last_finished();
    p.operations = read_page(*page, kPeerOperations);
    p.departed = transport_.departed(r);
    f.peers.push_back(std::move(p));
  }
  return f;
}

FlightCurrent OperationQueue::look_at(const Operation& op) {
  const Program& p = *op.program;
  FlightCurrent c;
  c.operation.posted.shape = op.shape();
  c.operation.posted.sequence = op.sequence;
  c.operation.posted.tag = op.tag;
  if (!is_point_to_point(&p))
    if (const auto posted = page_.read(op.sequence)) c.operation.posted = *posted;
  c.operation.algorithm = algorithm_name(op.shape());
  c.protocol = protocol_name(p.protocol);
  c.reason = p.reason;
  c.started = op.started;
  if (op.waiting_since_ns != 0) c.waited_ns = static_cast<int64_t>(monotonic_ns() - op.waiting_since_ns);
  for (size_t lane = 0; lane < p.lanes.size() && op.started; ++lane)
    if (!p.lanes[lane].empty()) c.lanes.push_back(executor_.look_at(op, static_cast<uint32_t>(lane)));
  if (const uint16_t from = p.operation.root; !op.started && is_posted(p.operation)) {
    c.started = true;
    FlightLane& l = c.lanes.emplace_back();
    l.verb = Verb::kRecv;
    l.num_steps = l.num_loops = 1;
    l.state = FlightLane::State::kData;
    if (from != kAnyPeer) l.peers = {from};
  }
  return c;
}

FlightLane Executor::look_at(const Operation& op, uint32_t lane) const {
  const Program& p = *op.program;
  const LaneState& at = op.lanes[lane];
  FlightLane l;
  l.lane = lane;
  l.num_steps = static_cast<uint32_t>(p.lanes[lane].size());
  l.loop = at.loop;
  l.num_loops = p.num_loops;
  l.step = at.pc;
  if (at.loop >= p.num_loops) {
    l.state = FlightLane::State::kDone;
    return l;
  }
  const ProgramStep& s = p.lanes[lane][at.pc];
  l.verb = s.verb;
  const Window w = p.window(s, at.loop);
  if (s.verb == Verb::kWait) {
    const LaneState& other = op.lanes[s.wait_lane];
    if (other.loop < at.loop || (other.loop == at.loop && other.pc <= s.wait_pc)) l.state = FlightLane::State::kOrder;
    return l;
  }
  if (s.is(kFlagDirect) || w.steps == 0) return l;
  if (op.waits_for_turn && !my_turn(op, s)) {
    l.state = FlightLane::State::kOrder;
    return l;
  }
  for (const ReadPort* r : s.recv)
    if (r->fifo.arrived(w.steps, op.fingerprint(s)) != Arrival::kReady || r->waits_for_ring())
      l.peers.push_back(r->key.writer);
  if (!l.peers.empty()) {
    l.state = FlightLane::State::kData;
    return l;
  }
  for (WritePort* to : s.send)
    if (!to->room_for(w.steps, w.ring_bytes, p.lap_bytes)) {
      l.state = FlightLane::State::kRoom;
      if (to->key.reader >= 0) l.peers.push_back(to->key.reader);
      else l.peers.insert(l.peers.end(), s.send_peers.begin(), s.send_peers.end());
    }
  return l;
}

}  // namespace rondo
