#include "schedule/check_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/check_machine_state.h"

namespace rondo::check {

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
      if (std::ranges::none_of(of_lane, same)) of_lane.emplace_back().pc = l.code[pc].dst_first;
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
      for (const uint32_t connection : p_.ops[0].sends(l.rank, i)) first_ops_messages_[connection] += messages;
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
      if (!length.has_value()) return fail(lane, "moves chunks into chunks of another length");
      elems = *length;
    }
    if (credit || elems != 0) {  // there are no messages without elements
      if (!is_ready(lane, i)) return;
      perform(lane, i, elems);
    }
    advance(lane, whole);
  }
}

void Machine::advance(uint32_t lane, const Instruction& whole) {
  LaneState& l = lanes_[lane];
  const bool repeated = whole.verb != Verb::kWait && !whole.is(kFlagCredit);  // for each window and each chunk
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
  for (const uint32_t end : p_.ops[l.op].receives(l.rank, i)) {
    const uint32_t connection = p_.ends[end].connection;
    if (l.op != 0 && head_[end] < first_ops_messages_[connection]) return next_ops_reader_[end] = lane, false;
    if (head_[end] == tail_[connection]) return waiting_reader_[end] = lane, false;
  }
  for (const uint32_t connection : p_.ops[l.op].sends(l.rank, i)) {
    const Connection& c = p_.connections[connection];
    if (l.op != 0 && tail_[connection] < first_ops_messages_[connection])
      return next_ops_writer_[connection] = lane, false;
    for (uint32_t end = c.first_end; end < c.first_end + c.num_ends; ++end)
      if (tail_[connection] - head_[end] >= depth()) return waiting_writer_[connection] = lane, false;
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
  for (const uint32_t end : p_.ops[l.op].receives(l.rank, i)) {
    const uint32_t connection = p_.ends[end].connection;
    const Rank writer = p_.connections[connection].writer;
    const uint64_t number = head_[end];
    const Message& m = messages_[slot(connection, number)];
    if (m.elems != elems)
      return fail(lane, fmt::format("expects {} elements from rank {}, which sends {}", elems, writer, m.elems));
    memory_.add_message(&m.value);
    l.depth = std::max(l.depth, m.depth);
    l.crossings = std::max(l.crossings, m.crossings + (crosses(writer, l.rank) ? 1 : 0));
    join(heard(lane), message_heard(slot(connection, number)));
    if (o_.races) memory_.races().join(lane, &message_clocks_[slot(connection, number) * lanes_.size()]);
  }
  // The values are read before the slots are reused: a woken writer runs only after this lane has stopped.
  for (const uint32_t end : p_.ops[l.op].receives(l.rank, i)) {
    const uint32_t connection = p_.ends[end].connection;
    ++head_[end];
    wake(waiting_writer_[connection]);
    if (l.op == 0 && p_.ops.size() > 1 && head_[end] == first_ops_messages_[connection]) wake(next_ops_reader_[end]);
  }
}

void Machine::post(uint32_t lane, const Instruction& i, uint64_t elems) {
  const LaneState& l = lanes_[lane];
  for (const uint32_t connection : p_.ops[l.op].sends(l.rank, i)) {
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

Outcome execute(const Program& program, const RunOptions& options) { return Machine(program, options).run(); }

}  // namespace rondo::check
