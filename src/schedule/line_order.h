// Checks that a schedule may run with a protocol whose lines carry their flags (LL, LL128).
//
// Such a message contains the data that was read for it, and therefore orders those reads before everything that
// follows from it. It does not order other stores of a lane. A lane that reads or overwrites another lane's store on
// its rank therefore needs a wait between them. The checker (checker.h) accepts any message as an order; this check is
// stricter, for one rank and one loop. (Loops touch other elements.)
//
// Pure function. O(instructions x lanes).
#pragma once

#include <optional>
#include <string>

#include "rondo/schedule.h"

namespace rondo {

/// Nothing if waits order all stores; else a text with two instructions that they do not order.
std::optional<std::string> store_without_wait(const RankSchedule& schedule);

}  // namespace rondo
