// Selects the schedules that also serve variable counts (all_gather_v, reduce_scatter_v, all_to_all_v and the like).
// They are the plain collectives' schedules; only the extents of chunks differ.
//
// The checker proves every schedule that this function accepts, and the planner uses no other. Thread safety: pure
// function.
#pragma once

#include "rondo/schedule.h"

namespace rondo {

/// True if this rank's schedule serves variable counts; the algorithm does if every rank's does, for every root. Each
/// buffer must be cut into exactly its parts, of any length. If all ranks know all counts (all_gather, reduce_scatter)
/// there is no other condition. Otherwise a rank knows its own counts only: each message must go straight from the
/// sender's `in` to the receiver's `out`. It must not use scratch, pass data on, or access a peer's buffer at an offset
/// that only the peer knows. O(instructions).
bool serves_variable_counts(const RankSchedule& schedule, Collective collective);

}  // namespace rondo
