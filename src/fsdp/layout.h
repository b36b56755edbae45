// Places a unit's tensors in segments and assigns rows to owners.
#pragma once

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

/// Fills tensors, placed, segments and bytes of a unit's plan. Errors: kInvalidArgument.
Expected<UnitPlan> lay_out(const Unit& unit, const Options& options);

}  // namespace rondo::fsdp
