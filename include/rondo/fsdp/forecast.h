// Forecasts the time of a pass from the times of its parts. One rank computes; beside it one line carries gathers and
// reductions in issue order. Communication that computing does not hide is exposed.
//
//   compute   |  forward 0  |wait|  forward 1   |
//   line      gather 1 ..........|gather 2 ...      gather 1 is longer than forward 0: the rest of it is exposed
//
// Thread safety: pure functions of plain values.
#pragma once

#include <vector>

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

/// Times of each unit's parts, in microseconds.
struct UnitCosts {
  double forward_us = 0, backward_us = 0, step_us = 0;  // computing
  double gather_us = 0, reduce_us = 0;                  // on the line
};

struct Forecast {
  double overlapped_us = 0;  // from the first action to the last
  double serial_us = 0;      // without overlap
  double compute_us = 0, line_us = 0;
  double exposed_us = 0;  // waits: overlapped_us - compute_us
};

/// costs: one per unit of the plan. Errors: kInvalidArgument (wrong number of costs, one below 0 or not finite).
/// O(actions).
RONDO_API Expected<Forecast> forecast(const Plan& plan, const std::vector<Action>& actions,
                                      const std::vector<UnitCosts>& costs);

/// Costs of a line: each collective takes latency_us plus its bytes at gigabytes_per_s; a ring of the shard group sends
/// (N - 1) / N of the whole. forward_us of each unit; backward takes twice as long.
RONDO_API std::vector<UnitCosts> line_costs(const Plan& plan, double gigabytes_per_s, double latency_us,
                                            double forward_us);

}  // namespace rondo::fsdp
