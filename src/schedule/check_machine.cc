#include "schedule/check_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/check_memory.h"

namespace rondo::check {
namespace {

struct LaneState {
  const Instruction* code = nullptr;
  uint32_t size = 0, pc = 0;
  uint32_t loop = 0, slice = 0;
  uint32_t chunk = 0;  // of the instruction's range
  Rank rank = 0;
  uint16_t op = 0, index = 0;  // lane `index` of its rank
  uint32_t depth = 0;          // messages on the longest chain that led here
  uint32_t crossings = 0;      // between hosts, on the chain that has most of them
  bool ready = false;          // stands in the queue
};

/// What lies in a FIFO.
struct Message {
  Value value;
  uint32_t depth = 0;
  uint32_t crossings = 0;  // of its writer
  uint64_t elems = 0;
};

/// A pc that another lane waits for: what that lane knew when it finished it.
struct Milestone {
  uint32_t pc = 0;
  std::vector<std::vector<uint32_t>> clocks;  // by loop
  std::vector<std::vector<uint64_t>> heard;
  std::vector<uint32_t> depths, crossings;
};

class Machine {
 public:
  Machine(const Program& program, const RunOptions& options) : p_(program), o_(options), memory_(program, options) {}

  Outcome run() {
    set_up();
    while (!ready_.empty() && !out_.failure) {
      const uint32_t lane = ready_.back();
      ready_.pop_back();
      lanes_[lane].ready = false;
      run_lane(lane);
    }
    if (!out_.failure) find_deadlock();
    if (!out_.failure) finish();
    return std::move(out_);
  }

 private:
  // --- setting up -----------------------------------------------------------------------------------------------
  void set_up();
  void find_milestones();
  void count_messages();

  // --- stepping -------------------------------------------------------------------------------------------------
  void run_lane(uint32_t lane);
  bool pass_wait(uint32_t lane, const Instruction& i);
  bool is_ready(uint32_t lane, const Instruction& i);
  void perform(uint32_t lane, const Instruction& i, uint64_t elems);
  void receive(uint32_t lane, const Instruction& i, uint64_t elems);
  void post(uint32_t lane, const Instruction& i, uint64_t elems);
  void advance(uint32_t lane, const Instruction& whole);
  void reach_milestones(uint32_t lane);
  void wake(uint32_t& lane) {
    if (lane == kNone) return;
    if (!std::exchange(lanes_[lane].ready, true)) ready_.push_back(lane);
    lane = kNone;
  }

  // --- the end --------------------------------------------------------------------------------------------------
  void find_deadlock();
  std::string why_blocked(uint32_t lane, bool* for_want_of_room);
  void finish();
  void check_exits();
  void check_barriers();
  void fail(uint32_t lane, std::string what) {
    const LaneState& l = lanes_[lane];
    if (!out_.failure) out_.failure = Failure{std::move(what), l.rank, l.index, static_cast<int>(l.pc), l.op};
  }

  const RankSchedule& schedule_of(const LaneState& l) const {
    return p_.ops[l.op].schedule->ranks[static_cast<size_t>(l.rank)];
  }
  int32_t host(Rank r) const {
    const std::vector<int32_t>& hosts = p_.ops[0].schedule->hosts;
    return hosts.empty() ? 0 : hosts[static_cast<size_t>(r)];
  }
  bool crosses(Rank from, Rank to) const { return host(from) != host(to); }
  uint32_t window(const LaneState& l) const { return l.loop * static_cast<uint32_t>(o_.slices) + l.slice; }
  uint32_t depth() const { return static_cast<uint32_t>(o_.depth); }
  size_t slot(uint32_t connection, uint64_t message) const { return connection * depth() + message % depth(); }
  // Who is known to a lane to have begun its operation: a bit for each rank. Barriers only, for any number of ranks.
  std::span<uint64_t> heard(uint32_t lane) { return {heard_.data() + lane * heard_words_, heard_words_}; }
  std::span<uint64_t> message_heard(size_t slot) { return {message_heard_.data() + slot * heard_words_, heard_words_}; }
  static void join(std::span<uint64_t> into, std::span<const uint64_t> from) {
    for (size_t k = 0; k < into.size(); ++k) into[k] |= from[k];
  }

  const Program& p_;
  const RunOptions& o_;
  Memory memory_;
  Outcome out_;

  std::vector<LaneState> lanes_;
  std::vector<std::vector<uint32_t>> lane_base_;  // by operation and rank: its lane 0
  std::vector<uint32_t> ready_;
  std::vector<std::vector<uint32_t>> watchers_;     // by lane: who waits for it
  std::vector<std::vector<Milestone>> milestones_;  // by lane

  // FIFOs, by connection or by reading end; messages are numbered from 0.
  std::vector<uint64_t> tail_, head_;
  std::vector<uint32_t> waiting_writer_, waiting_reader_;
  std::vector<uint64_t> first_ops_messages_;  // two operations: how many the first one sends
  std::vector<uint32_t> next_ops_writer_, next_ops_reader_;
  std::vector<Message> messages_;
  std::vector<uint32_t> message_clocks_;
  size_t heard_words_ = 0;  // 0: no barrier
  std::vector<uint64_t> heard_, message_heard_;
  std::vector<uint64_t> traffic_;
  std::vector<int64_t> sent_elems_;  // by rank
  std::vector<int64_t> host_sent_elems_;  // by host: over its link, once for each reader
};

void Machine::set_up() {
  lane_base_.resize(p_.ops.size());
  for (uint16_t op = 0; op < p_.ops.size(); ++op)
    for (const RankSchedule& r : p_.ops[op].schedule->ranks) {
      lane_base_[op].push_back(static_cast<uint32_t>(lanes_.size()));
      for (uint16_t k = 0; k < r.lanes.size(); ++k) {
        LaneState l;
        l.code = r.lanes[k].data();
        l.size = static_cast<uint32_t>(r.lanes[k].size());
        l.rank = r.rank, l.op = op, l.index = k, l.ready = true;
        lanes_.push_back(l);
      }
    }
  ready_.resize(lanes_.size());
  std::iota(ready_.rbegin(), ready_.rend(), 0u);

  const size_t connections = p_.connections.size();
  tail_.assign(connections, 0);
  head_.assign(p_.ends.size(), 0);
  waiting_writer_.assign(connections, kNone);
  waiting_reader_.assign(p_.ends.size(), kNone);
  messages_.resize(connections * depth());
  sent_elems_.assign(static_cast<size_t>(p_.nranks), 0);
  host_sent_elems_.assign(static_cast<size_t>(p_.nranks), 0);
  if (o_.fingerprint) traffic_.assign(connections, 0);
  memory_.start(o_.races ? static_cast<uint32_t>(lanes_.size()) : 0);
  if (o_.races) message_clocks_.resize(messages_.size() * lanes_.size());
  for (const OpTable& op : p_.ops)
    if (op.schedule->collective == Collective::kBarrier) heard_words_ = (static_cast<size_t>(p_.nranks) + 63) / 64;
  heard_.assign(lanes_.size() * heard_words_, 0);
  message_heard_.assign(messages_.size() * heard_words_, 0);
  for (uint32_t lane = 0; heard_words_ != 0 && lane < lanes_.size(); ++lane)
    heard(lane)[static_cast<size_t>(lanes_[lane].rank) / 64] |= uint64_t{1} << lanes_[lane].rank % 64;
  find_milestones();
  if (p_.ops.size() > 1) count_messages();
}

void Machine::find_milestones() {
  milestones_.resize(lanes_.size());
  watchers_.resize(lanes_.size());
  for (const LaneState& l : lanes_)
    for (uint32_t pc = 0; pc < l.size; ++pc) {
      if (l.code[pc].verb != Verb::kWait) continue;
      const uint32_t target = lane_base_[l.op][static_cast<size_t>(l.rank)] + l.code[pc].src_first;
      std::vector<Milestone>& of_lane = milestones_[target];
      const auto same = [&](const Milestone& m) { return m.pc == l.code[pc].dst_first; };
      if (std::none_of(of_lane.begin(), of_lane.end(), same)) of_lane.emplace_back().pc = l.code[pc].dst_first;
    }
}

void Machine::count_messages() {
  first_ops_messages_.assign(p_.connections.size(), 0);
  next_ops_writer_.assign(p_.connections.size(), kNone);
  next_ops_reader_.assign(p_.ends.size(), kNone);
  for (const LaneState& l : lanes_) {
    if (l.op != 0) continue;
    for (uint32_t pc = 0; pc < l.size; ++pc) {
      const Instruction& i = l.code[pc];
      if (!i.has(kVerbSend) || i.is(kFlagDirect)) continue;
      uint64_t messages = 0;
      if (i.is(kFlagCredit)) {
        messages = static_cast<uint64_t>(o_.loops);
      } else {
        for (uint32_t k = 0; k < i.num_chunks; ++k)
          for (uint32_t w = 0; w < memory_.num_windows(); ++w)
            messages += memory_.elems(schedule_of(l), 0, unrolled(schedule_of(l), i, k), w).value_or(0) != 0 ? 1 : 0;
      }
      const SetTable& set = p_.ops[0].set(l.rank, i.send_set);
      for (uint32_t k = 0; k < set.send_num; ++k)
        first_ops_messages_[p_.ops[0].send_connections[set.send_begin + k]] += messages;
    }
  }
}

void Machine::run_lane(uint32_t lane) {
  LaneState& l = lanes_[lane];
  const uint32_t loops = static_cast<uint32_t>(o_.loops);
  while (l.loop < loops && !out_.failure) {
    if (l.pc == l.size) {
      l.pc = 0;
      ++l.loop;
      continue;
    }
    const Instruction& whole = l.code[l.pc];
    if (whole.verb == Verb::kWait) {
      if (!pass_wait(lane, whole)) return;
      advance(lane, whole);
      continue;
    }
    const Instruction i = unrolled(schedule_of(l), whole, l.chunk);
    const bool credit = i.is(kFlagCredit);
    uint64_t elems = 0;
    if (!credit) {
      const std::optional<uint64_t> length = memory_.elems(schedule_of(l), l.op, i, window(l));
      if (!length.has_value()) {
        fail(lane, "moves chunks into chunks of another length");
        return;
      }
      elems = *length;
    }
    if (credit || elems != 0) {  // a message without elements does not exist, on either end
      if (!is_ready(lane, i)) return;
      perform(lane, i, elems);
    }
    advance(lane, whole);
  }
}

void Machine::advance(uint32_t lane, const Instruction& whole) {
  LaneState& l = lanes_[lane];
  const bool repeated = whole.verb != Verb::kWait && !whole.is(kFlagCredit);  // for each window, for each chunk
  if (repeated && ++l.slice < static_cast<uint32_t>(o_.slices)) return;
  l.slice = 0;
  if (repeated && ++l.chunk < whole.num_chunks) return;
  l.chunk = 0;
  if (!milestones_[lane].empty()) reach_milestones(lane);
  ++l.pc;
}

void Machine::reach_milestones(uint32_t lane) {
  const LaneState& l = lanes_[lane];
  for (Milestone& m : milestones_[lane]) {
    if (m.pc != l.pc) continue;
    m.depths.push_back(l.depth);
    m.crossings.push_back(l.crossings);
    if (o_.races) m.clocks.emplace_back(memory_.races().clock(lane), memory_.races().clock(lane) + lanes_.size());
    m.heard.emplace_back(heard(lane).begin(), heard(lane).end());
    for (uint32_t watcher : std::exchange(watchers_[lane], {})) wake(watcher);
  }
}

bool Machine::pass_wait(uint32_t lane, const Instruction& i) {
  LaneState& l = lanes_[lane];
  const uint32_t target = lane_base_[l.op][static_cast<size_t>(l.rank)] + i.src_first;
  for (const Milestone& m : milestones_[target]) {
    if (m.pc != i.dst_first) continue;
    if (m.depths.size() <= l.loop) {
      watchers_[target].push_back(lane);
      return false;
    }
    l.depth = std::max(l.depth, m.depths[l.loop]);
    l.crossings = std::max(l.crossings, m.crossings[l.loop]);
    join(heard(lane), m.heard[l.loop]);
    if (o_.races) {
      memory_.races().tick(lane);
      memory_.races().join(lane, m.clocks[l.loop].data());
    }
  }
  return true;
}

bool Machine::is_ready(uint32_t lane, const Instruction& i) {
  if (i.is(kFlagDirect)) return true;
  const LaneState& l = lanes_[lane];
  const OpTable& op = p_.ops[l.op];
  if (i.has(kVerbRecv)) {
    const SetTable& set = op.set(l.rank, i.recv_set);
    for (uint32_t k = 0; k < set.recv_num; ++k) {
      const uint32_t end = op.recv_ends[set.recv_begin + k], connection = p_.ends[end].connection;
      if (l.op != 0 && head_[end] < first_ops_messages_[connection]) return next_ops_reader_[end] = lane, false;
      if (head_[end] == tail_[connection]) return waiting_reader_[end] = lane, false;
    }
  }
  if (i.has(kVerbSend)) {
    const SetTable& set = op.set(l.rank, i.send_set);
    for (uint32_t k = 0; k < set.send_num; ++k) {
      const uint32_t connection = op.send_connections[set.send_begin + k];
      const Connection& c = p_.connections[connection];
      if (l.op != 0 && tail_[connection] < first_ops_messages_[connection])
        return next_ops_writer_[connection] = lane, false;
      for (uint32_t end = c.first_end; end < c.first_end + c.num_ends; ++end)
        if (tail_[connection] - head_[end] >= depth()) return waiting_writer_[connection] = lane, false;
    }
  }
  return true;
}

void Machine::perform(uint32_t lane, const Instruction& i, uint64_t elems) {
  const LaneState& l = lanes_[lane];
  if (o_.races) memory_.races().tick(lane);
  memory_.begin(l.op, l.rank, lane, l.pc, window(l));
  if (i.has(kVerbRecv) && !i.is(kFlagDirect)) receive(lane, i, elems);
  if (!i.is(kFlagCredit) && !out_.failure)
    if (auto what = memory_.compute(schedule_of(l), i)) fail(lane, std::move(*what));
  if (out_.failure) return;
  if (i.has(kVerbSend) && !i.is(kFlagDirect)) post(lane, i, elems);
}

void Machine::receive(uint32_t lane, const Instruction& i, uint64_t elems) {
  LaneState& l = lanes_[lane];
  const OpTable& op = p_.ops[l.op];
  const SetTable& set = op.set(l.rank, i.recv_set);
  for (uint32_t k = 0; k < set.recv_num; ++k) {
    const uint32_t end = op.recv_ends[set.recv_begin + k], connection = p_.ends[end].connection;
    const uint64_t number = head_[end];
    const Message& m = messages_[slot(connection, number)];
    if (m.elems != elems) {
      fail(lane, fmt::format("expects {} elements from rank {}, which sends {}", elems,
                             p_.connections[connection].writer, m.elems));
      return;
    }
    memory_.add_message(&m.value);
    l.depth = std::max(l.depth, m.depth);
    l.crossings = std::max(l.crossings, m.crossings + (crosses(p_.connections[connection].writer, l.rank) ? 1 : 0));
    join(heard(lane), message_heard(slot(connection, number)));
    if (o_.races) memory_.races().join(lane, &message_clocks_[slot(connection, number) * lanes_.size()]);
  }
  // The values are read before the slots are written again: a woken writer runs only after this lane has stopped.
  for (uint32_t k = 0; k < set.recv_num; ++k) {
    const uint32_t end = op.recv_ends[set.recv_begin + k], connection = p_.ends[end].connection;
    ++head_[end];
    wake(waiting_writer_[connection]);
    if (l.op == 0 && p_.ops.size() > 1 && head_[end] == first_ops_messages_[connection]) wake(next_ops_reader_[end]);
  }
}

void Machine::post(uint32_t lane, const Instruction& i, uint64_t elems) {
  const LaneState& l = lanes_[lane];
  const OpTable& op = p_.ops[l.op];
  const SetTable& set = op.set(l.rank, i.send_set);
  for (uint32_t k = 0; k < set.send_num; ++k) {
    const uint32_t connection = op.send_connections[set.send_begin + k];
    const Connection& c = p_.connections[connection];
    const uint64_t number = tail_[connection]++;
    const Value value = i.is(kFlagCredit) ? Value{} : memory_.result();
    messages_[slot(connection, number)] = {value, l.depth + 1, l.crossings, elems};
    out_.steps = std::max<int64_t>(out_.steps, l.depth + 1);
    sent_elems_[static_cast<size_t>(l.rank)] += static_cast<int64_t>(elems);
    if (o_.fingerprint) {
      const uint64_t h = mix(traffic_[connection] + elems);
      traffic_[connection] = i.is(kFlagCredit) ? h : mix(h + value.tree + value.elem * 3u + value.final);
    }
    std::ranges::copy(heard(lane), message_heard(slot(connection, number)).begin());
    if (o_.races)
      std::copy_n(memory_.races().clock(lane), lanes_.size(),
                  &message_clocks_[slot(connection, number) * lanes_.size()]);
    for (uint32_t end = c.first_end; end < c.first_end + c.num_ends; ++end) {
      wake(waiting_reader_[end]);
      if (!crosses(c.writer, p_.ends[end].reader)) continue;
      out_.crossings = std::max<int64_t>(out_.crossings, l.crossings + 1);
      host_sent_elems_[static_cast<size_t>(host(c.writer))] += static_cast<int64_t>(elems);
    }
    if (l.op == 0 && p_.ops.size() > 1 && tail_[connection] == first_ops_messages_[connection])
      wake(next_ops_writer_[connection]);
  }
}

std::string Machine::why_blocked(uint32_t lane, bool* for_want_of_room) {
  const LaneState& l = lanes_[lane];
  const Instruction& i = l.code[l.pc];
  const std::string place = fmt::format("rank {} lane {} pc {} waits for ", l.rank, l.index, l.pc);
  if (i.verb == Verb::kWait) return place + fmt::format("its lane {} to finish pc {}", i.src_first, i.dst_first);
  const OpTable& op = p_.ops[l.op];
  if (i.has(kVerbRecv)) {
    const SetTable& set = op.set(l.rank, i.recv_set);
    for (uint32_t k = 0; k < set.recv_num; ++k) {
      const uint32_t end = op.recv_ends[set.recv_begin + k];
      const Connection& c = p_.connections[p_.ends[end].connection];
      if (head_[end] == tail_[p_.ends[end].connection])
        return place + fmt::format("a message from rank {} (tag {})", c.writer, c.tag);
    }
  }
  const SetTable& set = op.set(l.rank, i.send_set);
  for (uint32_t k = 0; i.has(kVerbSend) && k < set.send_num; ++k) {
    const uint32_t connection = op.send_connections[set.send_begin + k];
    const Connection& c = p_.connections[connection];
    for (uint32_t end = c.first_end; end < c.first_end + c.num_ends; ++end)
      if (tail_[connection] - head_[end] >= depth()) {
        *for_want_of_room = true;
        return place + fmt::format("room towards rank {} (tag {})", p_.ends[end].reader, c.tag);
      }
  }
  return place + "the operation before it";
}

void Machine::find_deadlock() {
  constexpr int kMaxNamed = 6;
  std::string text;
  int blocked = 0;
  bool for_want_of_room = false;
  uint32_t first = kNone;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].loop == static_cast<uint32_t>(o_.loops)) continue;
    const std::string why = why_blocked(lane, &for_want_of_room);
    if (first == kNone) first = lane;
    if (++blocked <= kMaxNamed) text += (blocked > 1 ? "; " : "") + why;
  }
  if (first == kNone) return;
  if (blocked > kMaxNamed) text += fmt::format("; and {} lanes more", blocked - kMaxNamed);
  fail(first, fmt::format("deadlock with FIFOs of {}: {}", o_.depth, text));
  out_.failure->for_want_of_room = for_want_of_room;
}

void Machine::finish() {
  for (size_t e = 0; e < p_.ends.size(); ++e) {
    const uint32_t connection = p_.ends[e].connection;
    if (head_[e] == tail_[connection]) continue;
    const Connection& c = p_.connections[connection];
    out_.failure = Failure{fmt::format("{} messages from rank {} (tag {}) are never received",
                                       tail_[connection] - head_[e], c.writer, c.tag),
                           p_.ends[e].reader};
    return;
  }
  out_.sent_elems = *std::max_element(sent_elems_.begin(), sent_elems_.end());
  out_.host_sent_elems = *std::max_element(host_sent_elems_.begin(), host_sent_elems_.end());
  out_.failure = memory_.check_results(&out_.order_fingerprint);
  if (!out_.failure && o_.races) check_exits();
  if (!out_.failure && heard_words_ != 0) check_barriers();
  out_.traffic_fingerprint = out_.order_fingerprint;
  for (size_t c = 0; c < traffic_.size(); ++c) {
    const Connection& k = p_.connections[c];
    uint64_t name = mix(static_cast<uint64_t>(k.writer) << 32 | static_cast<uint64_t>(k.group) << 16 | k.tag);
    for (uint32_t end = k.first_end; end < k.first_end + k.num_ends; ++end)
      name = mix(name + static_cast<uint64_t>(p_.ends[end].reader));
    out_.traffic_fingerprint += mix(name + traffic_[c]);
  }
}

// What peers did to a rank's buffers must be known to it when its operation ends.
void Machine::check_exits() {
  std::vector<uint32_t> end_clock(lanes_.size());
  for (uint16_t op = 0; op < p_.ops.size(); ++op) {
    if (!p_.ops[op].direct) continue;
    for (Rank r = 0; r < p_.nranks && !out_.failure; ++r) {
      std::fill(end_clock.begin(), end_clock.end(), 0);
      const uint32_t base = lane_base_[op][static_cast<size_t>(r)];
      const size_t num = p_.ops[op].schedule->ranks[static_cast<size_t>(r)].lanes.size();
      for (uint32_t k = 0; k < num; ++k)
        for (size_t c = 0; c < end_clock.size(); ++c)
          end_clock[c] = std::max(end_clock[c], memory_.races().clock(base + k)[c]);
      if (const auto late = memory_.uncovered(op, r, end_clock.data())) {
        const LaneState& l = lanes_[late->lane];
        out_.failure = Failure{fmt::format("touches buffers of rank {}, whose operation may have ended by then", r),
                               l.rank, l.index, static_cast<int>(late->pc), op};
      }
    }
  }
}

// A barrier's postcondition: no rank ends before every rank has begun.
void Machine::check_barriers() {
  std::vector<uint64_t> all(heard_words_);
  for (uint16_t op = 0; op < p_.ops.size(); ++op) {
    if (p_.ops[op].schedule->collective != Collective::kBarrier) continue;
    for (const RankSchedule& r : p_.ops[op].schedule->ranks) {
      std::fill(all.begin(), all.end(), 0);
      all[static_cast<size_t>(r.rank) / 64] |= uint64_t{1} << r.rank % 64;
      const uint32_t base = lane_base_[op][static_cast<size_t>(r.rank)];
      for (uint32_t k = 0; k < r.lanes.size(); ++k) join(all, heard(base + k));
      for (Rank other = 0; other < p_.nranks; ++other)
        if ((all[static_cast<size_t>(other) / 64] >> other % 64 & 1) == 0) {
          out_.failure = Failure{fmt::format("may leave the barrier before rank {} has come", other), r.rank};
          out_.failure->op = op;
          return;
        }
    }
  }
}

}  // namespace

Outcome execute(const Program& program, const RunOptions& options) { return Machine(program, options).run(); }

}  // namespace rondo::check
