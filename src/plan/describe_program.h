// A program as a trace keeps it: what a reader of the trace needs to know of its instructions.
//
// Thread safety: the driver's, as the program.
#pragma once

#include <string>

#include "plan/program.h"
#include "trace/step_record.h"

namespace rondo {

/// O(instructions and ports).
TracedPlan describe_program(const Program& program);
/// The registered name of an algorithm by its number; "message" of a send or recv.
std::string algorithm_name(const OperationShape& shape);

}  // namespace rondo
