// Checks that a schedule may run with a protocol whose lines carry their flags (LL, LL128).
//
// Such a message contains the data that was read for it, and therefore orders those reads before everything that
// follows from it. It does not order other stores of a lane. A lane that reads or overwrites another lane's store on
// its rank therefore needs a wait between them. The checker (checker.h) accepts any message as an order; this check is
// stricter, for one rank and one loop. (Loops touch other elements.)
//
// Pure function. O(instructions x lanes).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rondo/schedule.h"

namespace rondo {

// For each lane, the number of its instructions known to have finished.
using Known = std::vector<uint32_t>;

struct Access {
  size_t lane;
  uint32_t pc;
  bool writes;
  Known known;  // at its execution
};

/// Nothing if waits order all stores; else a text with two instructions that they do not order.
inline std::optional<std::string> store_without_wait(const RankSchedule& s) {
  const size_t num_lanes = s.lanes.size();
  std::vector<Known> now(num_lanes, Known(num_lanes, 0));
  std::vector<std::vector<Known>> after(num_lanes);  // after each instruction
  std::map<std::pair<Buffer, uint32_t>, std::vector<Access>> places;
  auto touch = [&](Buffer buffer, uint16_t first, uint16_t count, size_t lane, uint32_t pc, bool writes) {
    if (buffer == Buffer::kIn) return;  // no instruction stores there, and the checker proves that its reads come first
    for (uint32_t k = 0; k < count; ++k)
      places[{buffer, (uint32_t{first} + k) % s.chunks(buffer)}].push_back({lane, pc, writes, now[lane]});
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t lane = 0; lane < num_lanes; ++lane)
      for (auto pc = static_cast<uint32_t>(after[lane].size()); pc < s.lanes[lane].size(); ++pc) {
        const Instruction& i = s.lanes[lane][pc];
        if (i.verb == Verb::kWait) {
          if (after[i.src_first].size() <= i.dst_first) break;  // the other lane has not reached it
          const Known& theirs = after[i.src_first][i.dst_first];
          for (size_t k = 0; k < num_lanes; ++k) now[lane][k] = std::max(now[lane][k], theirs[k]);
        } else if (!i.is(kFlagCredit)) {
          const uint16_t count = std::max<uint16_t>(i.num_chunks, 1);
          if (i.has(kVerbSrc)) touch(i.src_buffer(), i.src_first, count, lane, pc, false);
          if (i.has(kVerbDst)) touch(i.dst_buffer(), i.dst_first, count, lane, pc, true);
        }
        now[lane][lane] = pc + 1;
        after[lane].push_back(now[lane]);
        moved = true;
      }
  }
  for (const auto& [place, accesses] : places)
    for (const Access& a : accesses)
      for (const Access& b : accesses) {
        if (!a.writes || a.lane == b.lane || a.known[b.lane] > b.pc || b.known[a.lane] > a.pc) continue;
        return fmt::format(
            "lane {}, instruction {} stores chunk {}, which lane {}, instruction {} {} without a wait "
            "between them",
            a.lane, a.pc, place.second, b.lane, b.pc, b.writes ? "stores" : "reads");
      }
  return std::nullopt;
}

}  // namespace rondo
