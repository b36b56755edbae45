// The state of the machine that executes a Program on symbolic values. Internal to the checker.
//
// check_machine.cc steps it; check_end.cc explains the failure when no lane can move.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedule/check_machine.h"
#include "schedule/check_memory.h"

namespace rondo::check {

struct LaneState {
  const Instruction* code = nullptr;
  uint32_t size = 0, pc = 0;
  uint32_t loop = 0, slice = 0;
  uint32_t chunk = 0;  // of the instruction's range
  Rank rank = 0;
  uint16_t op = 0, index = 0;  // `index`: lane number within its rank
  uint32_t depth = 0;          // messages on the longest chain to here
  uint32_t crossings = 0;      // between hosts, on the chain with most of them
  bool ready = false;          // in the queue
};

/// A message in a FIFO.
struct Message {
  Value value;
  uint32_t depth = 0;
  uint32_t crossings = 0;  // of its writer
  uint64_t elems = 0;
};

/// A pc that another lane waits for, with the lane's knowledge after it.
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
  std::string why_blocked(uint32_t lane, bool named, bool* for_want_of_room) const;
  std::string never_sent(const LaneState& l, const Connection& c, uint64_t sent) const;
  Failure left_over(size_t end) const;
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
  // The ranks that have begun their operation as far as a lane knows: one bit per rank. For barriers only.
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
  std::vector<std::vector<uint32_t>> watchers_;     // by lane: lanes that wait for it
  std::vector<std::vector<Milestone>> milestones_;  // by lane

  // FIFOs, by connection or by reading end. Messages are numbered from 0.
  std::vector<uint64_t> tail_, head_;
  std::vector<uint32_t> waiting_writer_, waiting_reader_;
  std::vector<uint64_t> first_ops_messages_;  // two operations: messages of the first one
  std::vector<uint32_t> next_ops_writer_, next_ops_reader_;
  std::vector<Message> messages_;
  std::vector<uint32_t> message_clocks_;
  size_t heard_words_ = 0;  // 0: no barrier
  std::vector<uint64_t> heard_, message_heard_;
  std::vector<uint64_t> traffic_;
  std::vector<int64_t> sent_elems_;       // by rank
  std::vector<int64_t> host_sent_elems_;  // by host: over its link, once for each reader
};

}  // namespace rondo::check
