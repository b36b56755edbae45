// Describes a machine and rondo's choices on it as text, for `rondo info` and the golden tests. Pure functions.
#pragma once

#include <string>

#include "topology/scene.h"
#include "topology/select.h"

namespace rondo {

/// The devices, one per line.
std::string describe_devices(const GpuMachine& machine);
/// The matrix of links in the form of nvidia-smi topo -m: NV18 (direct), NVS18 (switch), PIX, PXB, PHB, NODE, SYS. A
/// trailing ! means that the driver allows no P2P.
std::string describe_links(const GpuMachine& machine);
/// The choice and its reason for each pair of ranks. Pairs with the same answer share a line. Then the engine. A
/// `scene` without ranks means one process for each device.
std::string describe_choices(const GpuScene& scene, const LinkPreferences& preferences);

}  // namespace rondo
