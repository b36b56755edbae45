#include "schedule/variable_counts.h"

#include <algorithm>

namespace rondo {
namespace {

/// Moves data from an input to an output, between ranks that know its length.
bool goes_straight(const Instruction& i, const CollectiveTraits& t) {
  if (i.verb == Verb::kWait || i.is(kFlagCredit)) return true;
  if (i.is(kFlagDirect)) {  // at the beginning of a peer's single part
    const bool pulls = i.has(kVerbRecv) && (i.src_buffer() == Buffer::kIn ? t.in_parts : t.out_parts) == Parts::kOne;
    return pulls && !i.has(kVerbSend);
  }
  if (i.has(kVerbRecv) && i.has(kVerbSend)) return false;
  if (i.has(kVerbSrc) && i.src_buffer() != Buffer::kIn) return false;
  return !i.has(kVerbDst) || i.dst_buffer() == Buffer::kOut;
}

}  // namespace

bool serves_variable_counts(const RankSchedule& s, Collective collective) {
  const CollectiveTraits& t = collective_traits(collective);
  const bool has_parts = t.in_parts == Parts::kEach || t.out_parts == Parts::kEach;
  if (!has_parts || s.in_chunks != parts(t.in_parts, s.nranks) || s.out_chunks != parts(t.out_parts, s.nranks))
    return false;
  if (collective == Collective::kAllGather || collective == Collective::kReduceScatter) return true;
  return std::ranges::all_of(s.lanes, [&](const Lane& lane) {
    return std::ranges::all_of(lane, [&](const Instruction& i) { return goes_straight(i, t); });
  });
}

}  // namespace rondo
