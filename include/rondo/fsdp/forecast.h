// How long a pass takes, from how long its parts take: one rank computes, and beside it one line carries gathers and
// reductions in the order in which they are issued. What cannot be hidden behind computing is exposed.
//
//   compute   |  forward 0  |wait|  forward 1   |
//   line      gather 1 ..........|gather 2 ...      gather 1 is longer than forward 0: the rest of it is exposed
//
// Thread safety: pure functions of plain values.
#pragma once

#include <vector>

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

/// How long each unit's parts take, in microseconds.
struct UnitCosts {
  double forward_us = 0, backward_us = 0, step_us = 0;  // computing
  double gather_us = 0, reduce_us = 0;                  // on the line
};

struct Forecast {
  double overlapped_us = 0;  // from the first action to the last
  double serial_us = 0;      // if nothing went on beside computing
  double compute_us = 0, line_us = 0;
  double exposed_us = 0;  // waits: overlapped_us - compute_us
};

/// costs: one for each unit of the plan. Errors: kInvalidArgument (another number of costs, one below 0 or not finite).
/// O(actions).
RONDO_API Expected<Forecast> forecast(const Plan& plan, const std::vector<Action>& actions,
                                      const std::vector<UnitCosts>& costs);

/// Costs of a line: each collective takes latency_us and its bytes at gigabytes_per_s, where a ring of the shard group
/// sends (N - 1) / N of the whole. forward_us of each unit; backward takes twice as long.
RONDO_API std::vector<UnitCosts> line_costs(const Plan& plan, double gigabytes_per_s, double latency_us,
                                            double forward_us);

}  // namespace rondo::fsdp
