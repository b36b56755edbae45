// First half of the checker: static checks of a Schedule, and the tables for executing it.
//
// Program::build checks every instruction once (operands, ports, flags) and finds the connections of one operation, or
// of two in a row, and their single writing and reading lanes. Internal to the checker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rondo/schedule.h"
#include "schedule/check_text.h"

namespace rondo::check {

/// An error and its place.
struct Failure {
  std::string what;
  Rank rank = -1;
  int lane = -1;
  int pc = -1;
  int op = 0;                     // of two in a row
  bool for_want_of_room = false;  // a deadlock that a deeper FIFO may resolve
};

constexpr uint32_t kNone = UINT32_MAX;

/// A connection's writing end.
struct Connection {
  Rank writer;
  uint16_t group, tag;
  uint32_t first_end;  // its reading ends: first_end .. first_end + num_ends - 1
  uint32_t num_ends;
};
/// A connection's reading end. Each reader has its own head.
struct End {
  uint32_t connection;
  Rank reader;
};

/// A port set as connections: reading ends in port order, distinct connections to send to.
struct SetTable {
  uint32_t recv_begin = 0, recv_num = 0, send_begin = 0, send_num = 0;
};

/// One of the operations.
struct OpTable {
  const Schedule* schedule = nullptr;
  LineOf line_of;
  std::vector<uint32_t> set_base;  // by rank: its set 0 in `sets`
  std::vector<SetTable> sets;
  std::vector<uint32_t> recv_ends, send_connections;
  bool direct = false;

  Words words() const { return Words(*schedule, line_of); }
  SetTable& set(Rank rank, uint16_t index) { return sets[set_base[static_cast<size_t>(rank)] + index]; }
  const SetTable& set(Rank rank, uint16_t index) const { return sets[set_base[static_cast<size_t>(rank)] + index]; }
  /// The reading ends, or the connections, of an instruction's port set; none if it does not receive or send.
  std::span<const uint32_t> receives(Rank rank, const Instruction& i) const {
    const SetTable& s = set(rank, i.recv_set);
    return {recv_ends.data() + s.recv_begin, i.has(kVerbRecv) ? s.recv_num : 0};
  }
  std::span<const uint32_t> sends(Rank rank, const Instruction& i) const {
    const SetTable& s = set(rank, i.send_set);
    return {send_connections.data() + s.send_begin, i.has(kVerbSend) ? s.send_num : 0};
  }
};

/// One of the schedules that are proven together.
struct Operation {
  const Schedule* schedule;
  LineOf line_of = {};
};

/// The rules of shape: one entry for each of nranks ranks, chunk counts that fit the collective.
std::optional<Failure> check_shape(const Schedule& s, int nranks);

class Program {
 public:
  /// Checks ranks, chunk counts, instructions, connections. The schedules must outlive the Program.
  std::optional<Failure> build(std::span<const Operation> operations);

  int nranks = 0;
  std::vector<OpTable> ops;
  std::vector<Connection> connections;
  std::vector<End> ends;

 private:
  std::optional<Failure> check_instruction(const Schedule& s, const RankSchedule& r, const Instruction& i) const;
  std::optional<Failure> scan(uint32_t op);
  std::optional<Failure> use_send_set(uint32_t op, const RankSchedule& r, uint16_t set, uint32_t lane);
  std::optional<Failure> use_recv_set(uint32_t op, const RankSchedule& r, uint16_t set, uint32_t lane);
  std::optional<Failure> check_ends() const;
  /// Makes `lane` the only one that uses an end (`id`, of connection c), once in each port set.
  std::optional<Failure> claim(uint32_t id, const Connection& c, uint32_t* owner, uint32_t lane, std::string_view done);

  std::unordered_map<uint64_t, uint32_t> by_name_;
  std::vector<uint32_t> writing_lane_, reading_lane_;  // of the current operation
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  std::vector<uint8_t> read_in_, written_in_;  // by end, by connection: bit = operation
};

/// One chunk of an instruction's range. The engine also unrolls a range to one message per chunk.
Instruction unrolled(const RankSchedule& r, const Instruction& i, uint32_t chunk);

/// "{1 3}" for ports or ranks.
std::string ports_text(const PortSet& ports);

}  // namespace rondo::check
