// Reads a HostTopology through hwloc: of this machine, of an XML file in hwloc's format (lstopo writes it too), or of a
// synthetic description as in hwloc's manual ("Package:2 NUMANode:2 Core:4 PU:2"), which makes up a machine without PCI
// devices. hwloc's types appear in host_reader.cc alone.
//
// Not here: GPUs' NVLinks, which join_gpus (host.h) adds.
//
// hwloc's library is opened at run time, like the CUDA driver: one build runs with and without it, and libnccl.so.2
// needs nothing that a container may lack. Without it, or in a build without hwloc's headers, have_hwloc() is false
// and every function answers kUnsupported saying why.
//
// Thread safety: any thread. This machine takes milliseconds, with its devices some tens.
#pragma once

#include <string>

#include "topology/host.h"

namespace rondo {

bool have_hwloc();
/// Why not, in words; empty when it is there.
std::string why_no_hwloc();

struct HostSource {
  enum class Kind : uint8_t { kThisMachine, kXml, kSynthetic };
  Kind kind = Kind::kThisMachine;
  std::string text = {};  // kXml: the file's contents; kSynthetic: the description
  bool devices = true;    // PCI, GPUs and NICs too
};

/// Of this machine, PUs are allowed as far as cgroup and the calling thread's affinity mask permit. hwloc's own
/// variables (HWLOC_XMLFILE, HWLOC_SYNTHETIC) may make it another machine: this_machine is then false. Errors:
/// kInvalidArgument naming what is wrong in the text, kUnsupported, kSystem.
Expected<HostTopology> read_host(const HostSource& source);
/// hwloc's XML of it, which read_host reads back. Errors as read_host.
Expected<std::string> host_xml(const HostSource& source);

/// Ok when the text is well-formed XML whose outermost element is <topology>; else which line is wrong, and how. It
/// looks at tags and quotes only. Pure.
Status check_xml(std::string_view text);

}  // namespace rondo
