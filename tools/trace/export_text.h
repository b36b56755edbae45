// What both exporters say of a record, as members of a JSON object.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "base/json_text.h"
#include "trace/trace_file.h"

namespace rondo {

/// "operation":"all_reduce","count_elems":... of a plan, without braces.
std::string plan_members(const TracedPlan& plan);
/// "sequence":1,"lane":0,... of the step at `index`, without braces and without times.
std::string step_members(const TraceFile& file, size_t index);

}  // namespace rondo
