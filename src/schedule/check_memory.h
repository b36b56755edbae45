// The checker's model of all ranks' buffers: symbolic values, lengths and accesses. Internal to the checker.
//
// A chunk has two numbers: its index in its buffer, and the class of its elements (check_collective.h). An element
// class in this file is such a class in one window of one operation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/check_collective.h"
#include "schedule/check_program.h"
#include "schedule/check_races.h"
#include "schedule/check_value.h"

namespace rondo::check {

struct RunOptions;

class Memory {
 public:
  Memory(const Program& program, const RunOptions& options);
  /// num_lanes 0: does not check accesses for races.
  void start(uint32_t num_lanes);
  Races& races() { return races_; }
  uint32_t num_windows() const { return windows_; }

  /// Elements in the message of an instruction on one chunk in a window; nothing if source and destination differ.
  std::optional<uint64_t> elems(const RankSchedule& r, uint32_t op, const Instruction& i, uint32_t window) const;

  /// One instruction on one chunk in one window: begin, add_message for each received message, compute, result.
  void begin(uint16_t op, Rank rank, uint32_t lane, uint32_t pc, uint32_t window);
  void add_message(const Value* value) { operands_.push_back(value); }
  /// Gathers, reduces, writes. Returns the error text, or nothing.
  std::optional<std::string> compute(const RankSchedule& r, const Instruction& i);
  const Value& result() const { return result_; }

  /// An operation's postcondition. Adds the fingerprint of its expression trees.
  std::optional<Failure> check_results(size_t op, uint64_t* order_fingerprint) const;
  /// An access to the rank's buffers that `clock` does not cover.
  std::optional<Races::Epoch> uncovered(uint16_t op, Rank rank, const uint32_t* clock) const;

 private:
  struct OpMemory {
    explicit OpMemory(const Schedule& s) : conditions(s) {}
    Conditions conditions;
    uint32_t scratch_chunks = 0;       // the maximum over ranks
    uint32_t first_elem = 0;           // unique across operations
    std::vector<uint64_t> lengths[2];  // of in and out, by window and chunk; for variable counts also by rank
    std::vector<uint64_t> full_sets;   // by element class; only for more than 64 ranks
    std::vector<Value> out, scratch;
    std::vector<uint32_t> first_lane;  // by rank
    uint64_t first_place = 0;          // of the rank's memory, for races

    uint32_t chunks(Buffer b) const {
      return b == Buffer::kIn ? conditions.in_chunks : b == Buffer::kOut ? conditions.out_chunks : scratch_chunks;
    }
    uint32_t num_places() const { return conditions.num_addresses() + scratch_chunks; }  // of one rank and window
    uint32_t elem(uint32_t window, uint32_t cls) const { return first_elem + window * conditions.num_classes() + cls; }
  };

  void fill_lengths(OpMemory& m) const;
  uint64_t part_elems(const OpMemory& m, Rank rank, Buffer b, uint32_t part) const;
  uint64_t length(const OpMemory& m, const RankSchedule& r, Buffer b, uint32_t chunk, uint32_t window) const;
  Value& stored(OpMemory& m, Rank rank, Buffer b, uint32_t chunk, uint32_t window);
  const Value& output(const OpMemory& m, Rank rank, uint32_t chunk, uint32_t window) const {
    return m.out[(static_cast<size_t>(rank) * windows_ + window) * m.conditions.out_chunks + chunk];
  }

  std::optional<std::string> access(Rank rank, Buffer b, uint32_t chunk, Races::Access kind);
  std::optional<std::string> read(Rank rank, Buffer b, uint32_t chunk, Value* value);
  std::optional<std::string> write(Rank rank, Buffer b, uint32_t chunk);
  std::optional<std::string> reduce(const RankSchedule& r, const Instruction& i);
  std::optional<std::string> judge(Value& v, const RankSchedule& r, const Instruction& i) const;
  std::optional<std::string> check_result(size_t op, Rank rank, uint32_t chunk, uint32_t window) const;
  uint64_t rank_order_tree(uint32_t elem) const;

  // Error texts.
  Words words() const;
  Place here() const;
  Place place_of(const Races::Epoch& e) const;
  std::string wait_for(const Place& other) const;
  std::string unwritten(Rank rank, Buffer b, uint32_t chunk) const;
  std::string operand_text(const RankSchedule& r, const Instruction& i, size_t k) const;
  std::string mixed(const RankSchedule& r, const Instruction& i) const;
  std::string twice(const RankSchedule& r, const Instruction& i) const;
  std::string lacking(const Value& v) const;
  uint32_t chunk_of(const OpMemory& m, const Value& v) const;
  std::string holding(const OpMemory& m, const Value& v) const;

  const Program& p_;
  const RunOptions& o_;
  uint32_t windows_;
  std::vector<OpMemory> ops_;
  Races races_;

  // The current instruction.
  uint16_t op_ = 0;
  Rank rank_ = 0;
  uint32_t lane_ = 0, pc_ = 0, window_ = 0;
  std::vector<const Value*> operands_;
  Value own_, result_;
  std::vector<Value> pulled_;
};

}  // namespace rondo::check
