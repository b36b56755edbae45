// The machine file: constants that a communicator has measured on this machine (api/machine_probe.h), for later
// processes. It has the format of calibration files (plan/calibration.h) and one line more:
//
//     machine = Intel(R) Xeon(R) Processor, caches 48K 2M 260M, CPUs 0-1 of 0-1, hand-over 64 to 128 ns, Linux 6.12.9,
//               rondo 0.1.0                                                                       (one line)
//
// Each such text has its own file, so machines may share a home directory, and a virtual machine whose cores move has a
// file for each distance.
//
// Thread safety: any thread.
#pragma once

#include <optional>
#include <string>

#include "plan/cost_model.h"
#include "rondo/status.h"

namespace rondo {

/// Returns the facts on which the constants depend: processor, caches, CPUs (of the cgroup, online), the range of the
/// time of a hand-over, kernel, rondo. The first call in a process measures the hand-over (topology/handover.h).
std::string machine_name();
/// Returns $XDG_CACHE_HOME/rondo/machine-HASH, or else $HOME/.cache/..., or an empty text if neither variable is set.
/// If there is no such file, but that of a neighbouring range and the time is near the border, returns that one. If the
/// hand-over could not be measured, returns the file of any range.
std::string machine_file_path();

/// Returns nothing if there is no such file. Errors with the reason why it must not be used: kSystem (it cannot be
/// read, or others may write it), kInvalidArgument (malformed, or of another machine).
Expected<std::optional<CostModel>> read_machine_file(const std::string& path);
/// Makes the folder, and writes the file as a whole. Only the user may read it. Errors: kSystem, kExhausted.
Status write_machine_file(const std::string& path, const CostModel& costs);

}  // namespace rondo
