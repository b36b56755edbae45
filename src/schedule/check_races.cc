#include "schedule/check_races.h"

#include <algorithm>

namespace rondo::check {

void Races::start(uint32_t num_lanes, uint64_t num_places) {
  width_ = num_lanes;
  clocks_.assign(static_cast<size_t>(num_lanes) * num_lanes, 0);
  places_.assign(num_places, {});
  for (uint32_t lane = 0; lane < num_lanes; ++lane) clock(lane)[lane] = 1;  // has begun
}

void Races::join(uint32_t lane, const uint32_t* other) {
  uint32_t* mine = clock(lane);
  for (uint32_t k = 0; k < width_; ++k) mine[k] = std::max(mine[k], other[k]);
}

Races::Verdict Races::access(uint64_t place, Access kind, uint32_t lane, uint32_t pc, Epoch* partner) {
  AccessHistory& p = places_[place];
  const uint32_t* mine = clock(lane);
  auto ordered = [mine](const Epoch& e) { return e.lane == UINT32_MAX || mine[e.lane] >= e.clock; };
  const Epoch now{lane, mine[lane], pc};
  *partner = p.write;
  if (!ordered(p.write)) return Verdict::kRace;
  if (kind == Access::kReadInput && p.write.lane != UINT32_MAX) return Verdict::kInputGone;
  if (kind != Access::kWrite) {
    if (p.reads.empty() || p.reads.back().lane != lane) p.reads.push_back(now);
    else p.reads.back() = now;
    return Verdict::kOrdered;
  }
  for (const Epoch& read : p.reads)
    if (!ordered(read)) {
      *partner = read;
      return Verdict::kRace;
    }
  p.write = now;
  p.reads.clear();
  return Verdict::kOrdered;
}

std::optional<Races::Epoch> Races::uncovered(uint64_t place, const uint32_t* clock) const {
  const AccessHistory& p = places_[place];
  if (p.write.lane != UINT32_MAX && clock[p.write.lane] < p.write.clock) return p.write;
  for (const Epoch& read : p.reads)
    if (clock[read.lane] < read.clock) return read;
  return std::nullopt;
}

}  // namespace rondo::check
