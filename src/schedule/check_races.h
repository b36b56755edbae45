// Race detection by vector clocks, for the checker. Internal.
//
// Every lane of every rank has a clock with one component per lane. It advances with each executed instruction and is
// joined with the clocks of every received message and every lane waited for. Two accesses to the same memory, one of
// them a write, must be ordered by these clocks. Room in a FIFO orders nothing; the verdict therefore holds for any
// depth. Memory is a rank's chunk in one window; `in` and `out` overlap as in in-place calls.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rondo/types.h"

namespace rondo::check {

class Races {
 public:
  enum class Access : uint8_t { kReadInput, kRead, kWrite };
  /// The place of an access, as indices for messages.
  struct Epoch {
    uint32_t lane = UINT32_MAX;
    uint32_t clock = 0;
    uint32_t pc = 0;
  };
  enum class Verdict : uint8_t { kOrdered, kRace, kInputGone };

  void start(uint32_t num_lanes, uint64_t num_places);
  /// The lane executes its next instruction.
  void tick(uint32_t lane) { ++clock(lane)[lane]; }
  uint32_t* clock(uint32_t lane) { return &clocks_[static_cast<size_t>(lane) * width_]; }
  uint32_t width() const { return width_; }
  /// Joins another clock into the lane's.
  void join(uint32_t lane, const uint32_t* other);
  /// True if `lane` knows an event of lane `other`.
  bool has_heard_of(uint32_t lane, uint32_t other) { return clock(lane)[other] != 0; }

  /// An access by `lane` to place number `place`. Sets `partner` to the conflicting access.
  Verdict access(uint64_t place, Access kind, uint32_t lane, uint32_t pc, Epoch* partner);
  /// The first access to `place` that `clock` does not cover.
  std::optional<Epoch> uncovered(uint64_t place, const uint32_t* clock) const;

 private:
  struct AccessHistory {
    Epoch write;
    std::vector<Epoch> reads;  // since that write
  };
  uint32_t width_ = 0;
  std::vector<uint32_t> clocks_;
  std::vector<AccessHistory> places_;
};

}  // namespace rondo::check
