// Settings: what the environment asks for, and what the ranks agreed on when the communicator was made.
//
// Thread safety: values.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "engine/planner.h"
#include "kernels/kernels.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo {

/// One rank's settings: trivially copyable, since ranks exchange them as bytes.
struct Settings {
  uint64_t abi = 1;            // of this struct and of the shared segments; ranks must be of one build
  char version[16] = {};
  double deadline_s = 600;     // RONDO_TIMEOUT_S
  double init_deadline_s = 120;  // RONDO_INIT_TIMEOUT_S
  int32_t simd = -1;           // RONDO_SIMD; -1: the best
  cpu_set_t cpus;              // on which this rank may run
  PlannerSettings planner;
};

/// From RONDO_* and `config`, whose nonzero fields win. Errors: kInvalidArgument naming the variable. Unknown RONDO_*
/// variables are reported on stderr.
Expected<Settings> read_settings(const Config& config);

/// Settings of a communicator made from another one: `parent`'s, less what `config` says otherwise.
/// Errors: kInvalidArgument.
Expected<Settings> override_settings(const Settings& parent, const Config& config);

/// What all ranks use: rank 0's plan settings. Errors: kMismatch naming the two ranks and both values where a rank sets
/// something else than rank 0. `all` is by rank.
Expected<Settings> agree(Rank rank, const std::vector<Settings>& all);

/// How many CPUs all ranks of a host may use together.
int count_cpus(const std::vector<Settings>& all);

}  // namespace rondo
