// Draws a host: packages and NUMA nodes as nested boxes, cores grouped by shared cache, PCIe switches with GPUs and
// NICs, ranks at their places, and the ring as arrows coloured by the link that each hop crosses. The output is one
// self-contained SVG text without scripts. Pure functions.
#pragma once

#include <span>
#include <string>

#include "topology/host.h"
#include "topology/order.h"
#include "topology/places.h"

namespace rondo {

std::string host_svg(const HostTopology& host, std::span<const Placement> places, std::span<const int> ring);

}  // namespace rondo
