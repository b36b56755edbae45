// A machine and what rondo would choose on it, as text for people: `rondo info`, and what the golden tests keep.
//
// Pure.
#pragma once

#include <string>

#include "topology/select.h"

namespace rondo {

/// The devices, one a line.
std::string describe_devices(const GpuMachine& machine);
/// The matrix of links, as nvidia-smi topo -m shows it: NV18 (direct), NVS18 (switch), PIX, PXB, PHB, NODE, SYS; a
/// trailing ! where the driver allows no P2P.
std::string describe_links(const GpuMachine& machine);
/// For each pair of ranks what is chosen and why; pairs with the same answer share a line. Then the engine. `scene`
/// without ranks: one process for each device.
std::string describe_choices(const GpuScene& scene, const LinkWishes& wishes);

}  // namespace rondo
