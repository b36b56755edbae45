// Reads a HostTopology through hwloc: from this machine, from an XML file in hwloc's format (lstopo writes it too), or
// from a synthetic description as in hwloc's manual ("Package:2 NUMANode:2 Core:4 PU:2"), which has no PCI devices.
// Only host_reader.cc uses hwloc's types. join_gpus (host.h) adds NVLinks.
//
// hwloc's library is opened at run time, like the CUDA driver: one build works with and without it, and libnccl.so.2
// adds no dependency. Without it, or in a build without hwloc's headers, have_hwloc() is false and every function
// returns kUnsupported with the reason.
//
// Thread safety: any thread. Reading this machine takes milliseconds, with its devices some tens.
#pragma once

#include <string>

#include "topology/host.h"

namespace rondo {

bool have_hwloc();
/// The reason why hwloc is unavailable; empty if it is available.
std::string why_no_hwloc();

struct HostSource {
  enum class Kind : uint8_t { kThisMachine, kXml, kSynthetic };
  Kind kind = Kind::kThisMachine;
  std::string text = {};  // kXml: the file's contents; kSynthetic: the description
  bool devices = true;    // also PCI, GPUs and NICs
};

/// On this machine, PUs are allowed if cgroup and the calling thread's affinity mask permit them. hwloc's own variables
/// (HWLOC_XMLFILE, HWLOC_SYNTHETIC) may replace the machine: this_machine is then false. Errors: kInvalidArgument
/// naming the fault in the text, kUnsupported, kSystem.
Expected<HostTopology> read_host(const HostSource& source);
/// hwloc's XML of the source, which read_host can read back. Errors as read_host.
Expected<std::string> host_xml(const HostSource& source);

/// Ok if the text is well-formed XML with outermost element <topology>; else the line and the fault. Checks only tags
/// and quotes. Pure.
Status check_xml(std::string_view text);

}  // namespace rondo
