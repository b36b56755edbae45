#include "schedule/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

namespace rondo {
namespace {

struct Cell {
  ExprPtr value;
  int step = 0;  // the step that wrote it
};

/// A chunk in transit, or a credit.
struct Parcel {
  ExprPtr value;
  int step = 0;
  std::vector<bool> heard;  // barriers only: the ranks that had come, as far as the sender knew
};

struct LaneState {
  size_t pc = 0;
  int step = 0;                // of the latest message that this lane depends on so far
  std::vector<int> done_step;  // by pc
  std::vector<bool> heard;     // barriers only, by rank: true if it has come
  std::vector<std::vector<bool>> done_heard;  // by pc
};

struct RankState {
  std::vector<Cell> buffers[3];
  std::vector<LaneState> lanes;
};

class SymbolicExecutor {
 public:
  explicit SymbolicExecutor(const Schedule& schedule) : schedule_(schedule), ranks_(schedule.ranks.size()) {
    for (const RankSchedule& r : schedule.ranks) {
      RankState& state = ranks_[static_cast<size_t>(r.rank)];
      for (Buffer b : {Buffer::kIn, Buffer::kOut, Buffer::kScratch}) state.buffers[index(b)].resize(r.chunks(b));
      for (int c = 0; c < r.in_chunks; ++c) {
        Expr input;
        input.rank = r.rank;
        input.chunk = c;
        input.complete = schedule.nranks == 1;
        state.buffers[index(Buffer::kIn)][static_cast<size_t>(c)].value = std::make_shared<const Expr>(input);
      }
      state.lanes.resize(r.lanes.size());
      if (schedule.collective != Collective::kBarrier) continue;
      for (LaneState& lane : state.lanes) {
        lane.heard.resize(ranks_.size());
        lane.heard[static_cast<size_t>(r.rank)] = true;
      }
    }
  }

  SymbolicRun run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const RankSchedule& r : schedule_.ranks)
        for (size_t lane = 0; lane < r.lanes.size(); ++lane)
          while (advance(r, lane)) moved = true;
    }
    note_stuck();
    for (const RankState& state : ranks_) {
      run_.done_steps.emplace_back();
      for (const LaneState& lane : state.lanes) run_.done_steps.back().push_back(lane.done_step);
    }
    std::ranges::stable_sort(run_.messages, {}, [](const StepMessage& m) { return std::pair(m.step, m.from); });
    std::ranges::stable_sort(run_.writes, {}, &StepWrite::step);
    std::ranges::stable_sort(run_.summed, {}, &StepWrite::step);
    std::ranges::stable_sort(run_.heard, {}, &StepHeard::step);
    std::ranges::stable_sort(run_.held, {}, [](const StepHeld& h) { return std::pair(h.step, h.rank); });
    return std::move(run_);
  }

 private:
  using Connection = std::tuple<Rank, Rank, uint16_t, uint16_t>;  // writer, reader, group, tag
  static size_t index(Buffer b) { return static_cast<size_t>(b); }

  Cell& cell(Rank rank, Buffer buffer, size_t chunk) {
    std::vector<Cell>& cells = ranks_[static_cast<size_t>(rank)].buffers[index(buffer)];
    return cells[chunk % cells.size()];
  }
  std::deque<Parcel>& parcels(Rank from, Rank to, const Port& port) {
    return connections_[{from, to, port.group, port.tag}];
  }

  bool arrived(const RankSchedule& r, const Instruction& i) {
    if (i.is(kFlagDirect)) return true;
    for (const Port& p : r.recv_ports(i))
      if (parcels(p.peer, r.rank, p).size() < std::max<size_t>(1, i.num_chunks)) return false;
    return true;
  }

  /// Executes one instruction of the lane if it is ready.
  bool advance(const RankSchedule& r, size_t lane_index) {
    RankState& state = ranks_[static_cast<size_t>(r.rank)];
    LaneState& lane = state.lanes[lane_index];
    if (lane.pc == r.lanes[lane_index].size()) return false;
    const Instruction& i = r.lanes[lane_index][lane.pc];
    if (i.verb == Verb::kWait) {
      if (i.src_first >= state.lanes.size()) return false;  // in an unproven schedule
      const LaneState& other = state.lanes[i.src_first];
      if (other.pc <= i.dst_first) return false;
      lane.step = std::max(lane.step, other.done_step[i.dst_first]);
      hear(lane, other.done_heard[i.dst_first]);
    } else {
      if (i.has(kVerbRecv) && !arrived(r, i)) return false;
      execute(r, i, lane);
    }
    lane.done_step.push_back(lane.step);
    lane.done_heard.push_back(lane.heard);
    ++lane.pc;
    return true;
  }

  void execute(const RankSchedule& r, const Instruction& i, LaneState& lane) {
    std::vector<std::vector<ExprPtr>> operands;  // by operand, then by chunk
    if (i.has(kVerbRecv)) operands = receive(r, i, lane);
    if (i.has(kVerbSrc) && !i.is(kFlagCredit)) {
      std::vector<ExprPtr> own;
      for (size_t k = 0; k < i.num_chunks; ++k) {
        const Cell& source = cell(r.rank, i.src_buffer(), i.src_first + k);
        own.push_back(known(source.value));
        lane.step = std::max(lane.step, source.step);
      }
      operands.insert(operands.begin() + std::min<ptrdiff_t>(i.src_position, std::ssize(operands)), std::move(own));
    }
    std::vector<ExprPtr> values;
    if (!i.is(kFlagCredit))
      for (size_t k = 0; k < i.num_chunks; ++k) values.push_back(combine(r, i, operands, k, lane.step));
    if (i.has(kVerbDst) && !i.is(kFlagCredit))
      for (size_t k = 0; k < i.num_chunks; ++k) write(lane.step, r.rank, i.dst_buffer(), i.dst_first + k, values[k]);
    if (i.has(kVerbRecv) && i.has(kVerbSend) && !i.has(kVerbDst))
      for (const ExprPtr& v : values) run_.held.push_back({lane.step, r.rank, v});
    if (i.has(kVerbSend)) send(r, i, lane, values);
  }

  std::vector<std::vector<ExprPtr>> receive(const RankSchedule& r, const Instruction& i, LaneState& lane) {
    std::vector<std::vector<ExprPtr>> operands;
    if (i.is(kFlagDirect)) {
      ++lane.step;
      run_.num_steps = std::max(run_.num_steps, lane.step);
      for (const Port& p : r.recv_ports(i)) {
        StepMessage pull{StepMessage::Kind::kPull, lane.step, p.peer, {r.rank}, {}};
        for (size_t k = 0; k < i.num_chunks; ++k)
          pull.values.push_back(known(cell(p.peer, i.src_buffer(), i.src_first + k).value));
        operands.push_back(pull.values);
        run_.messages.push_back(std::move(pull));
      }
      return operands;
    }
    for (const Port& p : r.recv_ports(i)) {
      std::deque<Parcel>& queue = parcels(p.peer, r.rank, p);
      operands.emplace_back();
      for (size_t k = 0; k < std::max<size_t>(1, i.num_chunks); ++k) {  // a credit has no chunk
        lane.step = std::max(lane.step, queue.front().step);
        operands.back().push_back(known(queue.front().value));
        hear(lane, queue.front().heard);
        queue.pop_front();
      }
    }
    if (!lane.heard.empty()) run_.heard.push_back({lane.step, r.rank, lane.heard});
    return operands;
  }

  /// Unwritten memory, and a credit received as data, yield an expression of rank -1.
  static ExprPtr known(const ExprPtr& value) { return value != nullptr ? value : std::make_shared<const Expr>(); }

  static void hear(LaneState& lane, const std::vector<bool>& of) {
    for (size_t k = 0; k < of.size(); ++k)
      if (of[k]) lane.heard[k] = true;
  }

  ExprPtr combine(const RankSchedule& r, const Instruction& i, const std::vector<std::vector<ExprPtr>>& operands,
                  size_t k, int step) {
    ExprPtr value = operands.front()[k];
    if (operands.size() > 1) {
      Expr sum;
      sum.num_terms = 0;
      sum.chunk = value->chunk;
      for (const std::vector<ExprPtr>& operand : operands) {
        sum.operands.push_back(operand[k]);
        sum.num_terms += operand[k]->num_terms;
      }
      sum.complete = is_complete(sum);
      value = std::make_shared<const Expr>(std::move(sum));
    }
    const bool formed_here = i.has(kVerbSrc) && collective_reduces(schedule_.collective);
    if (formed_here && value->complete && (value->is_sum() || schedule_.nranks == 1))
      run_.summed.push_back({step, r.rank, Buffer::kIn, value->chunk, value});
    return value;
  }

  bool is_complete(const Expr& sum) const {
    if (sum.num_terms != schedule_.nranks) return false;
    std::vector<bool> seen(static_cast<size_t>(schedule_.nranks));
    return every_term_is_new(sum, sum.chunk, seen);
  }
  static bool every_term_is_new(const Expr& e, int chunk, std::vector<bool>& seen) {
    for (const ExprPtr& operand : e.operands)
      if (!every_term_is_new(*operand, chunk, seen)) return false;
    if (e.is_sum()) return true;
    if (e.rank < 0 || e.chunk != chunk || seen[static_cast<size_t>(e.rank)]) return false;
    return seen[static_cast<size_t>(e.rank)] = true;
  }

  void write(int step, Rank rank, Buffer buffer, size_t chunk, const ExprPtr& value) {
    Cell& target = cell(rank, buffer, chunk);
    target = {value, step};
    const int num_chunks = static_cast<int>(ranks_[static_cast<size_t>(rank)].buffers[index(buffer)].size());
    run_.writes.push_back({step, rank, buffer, static_cast<int>(chunk) % num_chunks, value});
  }

  void send(const RankSchedule& r, const Instruction& i, LaneState& lane, const std::vector<ExprPtr>& values) {
    StepMessage message{StepMessage::Kind::kMessage, lane.step + 1, r.rank, {}, values};
    if (i.is(kFlagDirect)) message.kind = StepMessage::Kind::kPush;
    if (i.is(kFlagCredit)) message.kind = StepMessage::Kind::kCredit;
    run_.num_steps = std::max(run_.num_steps, message.step);
    for (const Port& p : r.send_ports(i)) {
      message.to.push_back(p.peer);
      if (i.is(kFlagDirect))
        for (size_t k = 0; k < values.size(); ++k)
          write(message.step, p.peer, Buffer::kOut, i.dst_first + k, values[k]);
      else if (i.is(kFlagCredit)) parcels(r.rank, p.peer, p).push_back({nullptr, message.step, lane.heard});
      else
        for (const ExprPtr& value : values) parcels(r.rank, p.peer, p).push_back({value, message.step, {}});
    }
    if (i.is(kFlagDirect)) lane.step = message.step;
    run_.messages.push_back(std::move(message));
  }

  void note_stuck() {
    for (const RankSchedule& r : schedule_.ranks)
      for (size_t lane = 0; lane < r.lanes.size(); ++lane) {
        const size_t pc = ranks_[static_cast<size_t>(r.rank)].lanes[lane].pc;
        if (pc == r.lanes[lane].size()) continue;
        run_.stuck += fmt::format("rank {} lane {} waits for ever at its instruction {} ({})\n", r.rank, lane, pc,
                                  verb_name(r.lanes[lane][pc].verb));
      }
  }

  const Schedule& schedule_;
  std::vector<RankState> ranks_;
  std::map<Connection, std::deque<Parcel>> connections_;
  SymbolicRun run_;
};

}  // namespace

SymbolicRun run_symbolically(const Schedule& schedule) { return SymbolicExecutor(schedule).run(); }

int step_of(const Schedule& schedule, const SymbolicRun& run, Rank rank, int lane, int pc) {
  const std::vector<std::vector<int>>& lanes = run.done_steps[static_cast<size_t>(rank)];
  const size_t l = static_cast<size_t>(lane), at = static_cast<size_t>(pc);
  if (l >= lanes.size() || at >= lanes[l].size()) return -1;
  const Instruction& i = schedule.ranks[static_cast<size_t>(rank)].lanes[l][at];
  const bool starts = i.has(kVerbSend) && !i.has(kVerbRecv) && !i.is(kFlagDirect);  // in the next step
  return lanes[l][at] + (starts ? 1 : 0);
}

const Expr* first_partial_sum(const SymbolicRun& run) {
  auto partial = [](const ExprPtr& v) { return v->is_sum() && !v->complete; };
  for (const StepMessage& m : run.messages)
    for (const ExprPtr& v : m.values)
      if (partial(v)) return v.get();
  for (const StepWrite& w : run.writes)
    if (partial(w.value)) return w.value.get();
  return nullptr;
}

}  // namespace rondo
