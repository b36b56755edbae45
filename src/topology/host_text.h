// A host, the places of its ranks, and their ring and tree, as text for people: what `rondo topo` prints and the golden
// tests keep.
//
// Pure.
#pragma once

#include <span>
#include <string>

#include "topology/host.h"
#include "topology/order.h"
#include "topology/places.h"

namespace rondo {

/// An indented tree: packages, their NUMA nodes, and in these PCIe switches with GPUs and NICs. Cores of a node share a
/// line, other PCI devices are left out.
std::string describe_host(const HostTopology& host);
/// A line for each rank.
std::string describe_places(const HostTopology& host, std::span<const Placement> places);
/// Hops that follow one another and cross the same share a line; then how often each kind of link is crossed.
std::string describe_ring(const Hops& hops, std::span<const int> ring);
std::string describe_tree(const Hops& hops, const TreeOrder& tree);

/// "core 3 (CPUs 3,35) of NUMA node 0, GPU 0, NIC mlx5_0"
std::string describe_place(const HostTopology& host, const Placement& place);
/// "L3 cache", "2 PCIe switches", "socket link (distance 32)"
std::string hop_text(const Hop& hop);

/// What is drawn of the PCI tree: bridges that join several GPUs and NICs, and these; a port with one thing behind it
/// is left out. Host bridges count as bridges. `gpu`, `nic`: indices, or -1.
struct PciItem {
  int pci = -1;
  int gpu = -1, nic = -1;
  std::vector<PciItem> parts;
};
/// Those of one place; devices whose place is not known have package and numa -1.
std::vector<PciItem> pci_items(const HostTopology& host, int package, int numa);

std::string size_text(uint64_t bytes);

}  // namespace rondo
