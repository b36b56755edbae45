// Whether a schedule may run by a protocol whose lines carry their flags (LL, LL128).
//
// By such lines a message orders what was read for it before whatever follows from it, since it holds what was read;
// but it does not order what a lane has stored elsewhere. So a lane that reads or overwrites what another lane of its
// rank has stored needs to be ordered with it by a wait, or to come first by one. The checker's proof (checker.h)
// takes any message for an order: this is the stricter question, of one rank and one loop. (Loops touch other
// elements.)
//
// Pure function. O(instructions x lanes).
#pragma once

#include <optional>
#include <string>

#include "rondo/schedule.h"

namespace rondo {

/// Nothing when waits order all stores; else the two instructions that they do not order, in words.
std::optional<std::string> store_without_wait(const RankSchedule& schedule);

}  // namespace rondo
