// Reads a host with its devices through hwloc: from this machine, from an XML file in hwloc's format (lstopo writes it
// too), or from a synthetic description as in hwloc's manual ("Package:2 NUMANode:2 Core:4 PU:2"), which has no PCI
// devices. join_gpus (host_devices.h) adds NVLinks. For `rondo topo`.
//
// Thread safety: any thread. Reading this machine takes some tens of milliseconds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "topology/host_devices.h"
#include "topology/host_reader.h"

namespace rondo {

struct HostSource {
  enum class Kind : uint8_t { kThisMachine, kXml, kSynthetic };
  Kind kind = Kind::kThisMachine;
  std::string text = {};  // kXml: the file's contents; kSynthetic: the description
};

/// The processors as from read_processors (host_reader.h), and the devices. Errors: kInvalidArgument naming the fault
/// in the text, kUnsupported, kSystem.
Expected<HostWithDevices> read_host(const HostSource& source);
/// hwloc's XML of the source, which read_host can read back. Errors as read_host.
Expected<std::string> host_xml(const HostSource& source);

/// Ok if the text is well-formed XML with outermost element <topology>; else the line and the fault. Checks only tags
/// and quotes. Pure.
Status check_xml(std::string_view text);

/// "0-3,8,10-11" to the numbers, ascending. Errors: kInvalidArgument.
Expected<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace rondo
