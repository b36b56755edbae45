// A host as a drawing: packages and NUMA nodes as nested boxes, in them cores by their shared cache, PCIe switches
// with GPUs and NICs; ranks where they run, and the ring as arrows in the colour of what each hop crosses. One
// self-contained SVG text, no script.
//
// Pure.
#pragma once

#include <span>
#include <string>

#include "topology/host.h"
#include "topology/order.h"
#include "topology/places.h"

namespace rondo {

std::string host_svg(const HostTopology& host, std::span<const Placement> places, std::span<const int> ring);

}  // namespace rondo
