// Text of a record as members of a JSON object, for both exporters. Thread safety: pure functions.
#pragma once

#include <string>

#include "base/json_text.h"
#include "trace/trace_file.h"

namespace rondo {

/// Members of a plan: "operation":"all_reduce","count_elems":..., without braces.
std::string plan_members(const TracedPlan& plan);
/// Members of the step at `index`: "sequence":1,"lane":0,..., without braces and times.
std::string step_members(const TraceFile& file, size_t index);

}  // namespace rondo
