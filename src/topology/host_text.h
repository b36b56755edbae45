// A host, the places of its ranks, and their ring and tree as text, for `rondo topo` and the golden tests. Pure.
#pragma once

#include <span>
#include <string>

#include "topology/host.h"
#include "topology/order.h"
#include "topology/places.h"

namespace rondo {

/// An indented tree: packages, their NUMA nodes, and in these PCIe switches with GPUs and NICs. Cores of a node share a
/// line; other PCI devices are omitted.
std::string describe_host(const HostTopology& host);
/// One line per rank.
std::string describe_places(const HostTopology& host, std::span<const Placement> places);
/// Consecutive hops with the same crossing share a line; then the number of crossings of each kind of link.
std::string describe_ring(const Hops& hops, std::span<const int> ring);
std::string describe_tree(const Hops& hops, const TreeOrder& tree);

/// "core 3 (CPUs 3,35) of NUMA node 0, GPU 0, NIC mlx5_0"
std::string describe_place(const HostTopology& host, const Placement& place);
/// "L3 cache", "2 PCIe switches", "socket link (distance 32)"
std::string hop_text(const Hop& hop);

/// The drawn part of the PCI tree: GPUs, NICs, and bridges that join several of them. A port with a single device is
/// omitted. Host bridges count as bridges. `gpu`, `nic`: indices, or -1.
struct PciItem {
  int pci = -1;
  int gpu = -1, nic = -1;
  std::vector<PciItem> parts;
};
/// The items of one place; devices with unknown place have package and numa -1.
std::vector<PciItem> pci_items(const HostTopology& host, int package, int numa);

std::string size_text(uint64_t bytes);

}  // namespace rondo
