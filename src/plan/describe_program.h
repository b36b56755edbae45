// Describes a program for a trace: the instruction data that readers of the trace need.
//
// Thread safety: belongs to the driver, like the program.
#pragma once

#include <string>

#include "plan/program.h"
#include "trace/step_record.h"

namespace rondo {

/// Returns the constant data of a program's instructions. O(instructions and ports).
TracedPlan describe_program(const Program& program);
/// Returns the registered name of the shape's algorithm; "message" or "matched message" for a send or recv.
std::string algorithm_name(const OperationShape& shape);

}  // namespace rondo
