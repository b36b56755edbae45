// The machine's constants for the planner, measured when a communicator is first made on a machine that has none. Two
// threads make calls with candidates of different costs, and the constants are fitted to their times. They are kept in
// a file (plan/machine_file.h). Unlike `rondo calibrate`, this usually takes at most 50 ms, and it gives no
// corrections.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "plan/calibration.h"

namespace rondo {

/// Measures the constants. Takes 20 to 50 ms, at most about a second if a CPU is not available. It uses two CPUs of the
/// calling thread, or of the process's cgroup if the thread is bound to one core. It restores the thread's CPUs. If the
/// cgroup has only one core, it returns the built-in constants. Errors: kUnsupported with the reason why the constants
/// would be wrong or could not be measured (other work uses these CPUs, the times are not steady, no thread or memory).
Expected<CostModel> measure_machine();

/// Measures the constants and writes them to `path` (plan/machine_file.h). If they cannot be measured, returns the
/// built-in ones. If they cannot be written, returns the measured ones. Reports both failures on stderr.
CostsInForce measure_and_keep(const std::string& path, const std::function<Expected<CostModel>()>& measure);
/// Returns the constants for a communicator whose settings have none: from the machine file, or else measured and kept.
/// Only the first call in a process reads or measures. Later calls return the same constants.
std::shared_ptr<const CostsInForce> costs_of_this_machine();

}  // namespace rondo
