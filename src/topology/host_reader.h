// Reads this machine's processors through hwloc.
//
// hwloc's library is opened at run time, like the CUDA driver: one build works with and without it, and libnccl.so.2
// adds no dependency. Without it, or in a build without hwloc's headers, have_hwloc() is false and read_processors
// returns kUnsupported with the reason.
//
// Thread safety: any thread. Reading takes milliseconds.
#pragma once

#include <string>

#include "rondo/status.h"
#include "topology/host.h"

namespace rondo {

bool have_hwloc();
/// The reason why hwloc is unavailable; empty if it is available.
std::string why_no_hwloc();
/// The error of all readers without hwloc: kUnsupported with that reason.
Status no_hwloc();

/// PUs are allowed if cgroup and the calling thread's affinity mask permit them. hwloc's own variables (HWLOC_XMLFILE,
/// HWLOC_SYNTHETIC) may replace the machine: this_machine is then false. Errors: kUnsupported, kSystem.
Expected<HostTopology> read_processors();

}  // namespace rondo
