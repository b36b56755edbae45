// Variable counts: which schedules also serve calls with a count for each rank (all_gather_v, reduce_scatter_v,
// all_to_all_v and the like). The schedules are those of the plain collectives; only the extents of chunks differ.
//
// The checker proves every schedule of which this says yes, and the planner takes no other.
// Thread safety: pure function.
#pragma once

#include "rondo/schedule.h"

namespace rondo {

/// True when this rank's part of an algorithm serves variable counts; an algorithm does if it does on every rank, for
/// every root. Each buffer must be cut into exactly its parts, one of which may have any length. Where all ranks know
/// all counts (all_gather, reduce_scatter) nothing else is asked. Elsewhere a rank knows its own counts only, so each
/// message must go straight from the sender's `in` to the receiver's `out`: no scratch, nothing passed on, no peer's
/// buffer reached into where its offset is another rank's business. O(instructions).
bool serves_variable_counts(const RankSchedule& schedule, Collective collective);

}  // namespace rondo
