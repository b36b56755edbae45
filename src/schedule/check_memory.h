// The buffers of all ranks, as the checker sees them: symbolic values, lengths and accesses. Internal to the checker.
//
// Chunks have two numbers: the one in their buffer, and the one in the collective's whole ("place"): chunk c of `in` in
// an all-gather of 4 ranks is place rank + c. Equal places of one rank are the same memory when a call is in place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedule/check_program.h"
#include "schedule/check_races.h"
#include "schedule/check_value.h"

namespace rondo::check {

struct RunOptions;

class Memory {
 public:
  Memory(const Program& program, const RunOptions& options);
  /// num_lanes 0: accesses are not checked for races.
  void start(uint32_t num_lanes);
  Races& races() { return races_; }
  uint32_t num_windows() const { return windows_; }

  /// How many elements the instruction's message has in a window; nothing when source and destination differ.
  std::optional<uint64_t> elems(const RankSchedule& r, uint32_t op, const Instruction& i, uint32_t window) const;

  /// One instruction in one window: begin, add_message for each received one, compute, result.
  void begin(uint16_t op, Rank rank, uint32_t lane, uint32_t pc, uint32_t window);
  void add_message(const Value* values) { operands_.push_back(values); }
  /// Gathers, reduces, writes. What is wrong in words, or nothing.
  std::optional<std::string> compute(const RankSchedule& r, const Instruction& i);
  std::span<const Value> result() const { return result_; }

  /// The collective's postcondition, and the fingerprint of all expression trees.
  std::optional<Failure> check_results(uint64_t* order_fingerprint) const;
  /// An access to the rank's buffers that `clock` does not cover.
  std::optional<Races::Epoch> uncovered(uint16_t op, Rank rank, const uint32_t* clock) const;

 private:
  struct OpMemory {
    Collective collective;
    uint32_t in_chunks, out_chunks, scratch_chunks, places;
    uint32_t first_elem;               // element classes of different operations differ
    std::vector<uint64_t> lengths[2];  // of in and out, by window and chunk
    std::vector<uint64_t> full_sets;   // by element class; more than 64 ranks only
    std::vector<Value> out, scratch;
    std::vector<uint32_t> first_lane;  // by rank
    uint64_t first_place;
  };

  uint32_t place(const OpMemory& m, Rank rank, Buffer b, uint32_t chunk) const;
  uint32_t elem(const OpMemory& m, uint32_t window, uint32_t place) const {
    return m.first_elem + window * m.places + place;
  }
  uint32_t chunks(const OpMemory& m, Buffer b) const {
    return b == Buffer::kIn ? m.in_chunks : b == Buffer::kOut ? m.out_chunks : m.scratch_chunks;
  }
  Value& stored(OpMemory& m, Rank rank, Buffer b, uint32_t chunk, uint32_t window);
  uint32_t full_count(const OpMemory& m) const {
    return collective_reduces(m.collective) ? static_cast<uint32_t>(p_.nranks) : 1;
  }

  std::optional<std::string> access(Rank rank, Buffer b, uint32_t chunk, Races::Access kind);
  std::optional<std::string> read(Rank rank, Buffer b, uint32_t first, uint32_t num, Value* values);
  std::optional<std::string> write(Rank rank, Buffer b, uint32_t first);
  std::optional<std::string> reduce(const Instruction& i);
  std::optional<std::string> judge(Value& v, uint32_t position, bool flagged) const;
  std::string twice(uint32_t position) const;
  std::optional<std::string> check_result(const OpMemory& m, Rank rank, uint32_t chunk, uint32_t window) const;
  uint64_t rank_order_tree(uint32_t elem) const;

  const Program& p_;
  const RunOptions& o_;
  uint32_t windows_;
  std::vector<OpMemory> ops_;
  Races races_;

  // The instruction under way.
  uint16_t op_ = 0;
  Rank rank_ = 0;
  uint32_t lane_ = 0, pc_ = 0, window_ = 0;
  std::vector<const Value*> operands_;
  std::vector<Value> own_, result_;
  std::vector<std::vector<Value>> pulled_;
};

}  // namespace rondo::check
