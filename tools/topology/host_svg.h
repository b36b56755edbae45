// Draws a host: packages and NUMA nodes as nested boxes, cores grouped by shared cache, PCIe switches with GPUs and
// NICs, ranks at their places, and the ring as arrows, between cores coloured by the link that each hop crosses. The
// output is one self-contained SVG text without scripts. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "topology/host_devices.h"

namespace rondo {

/// `order`: as in describe_ring (host_text.h).
std::string host_svg(const HostWithDevices& host, std::span<const DevicePlacement> places,
                     const std::optional<LocalOrder>& order);

}  // namespace rondo
