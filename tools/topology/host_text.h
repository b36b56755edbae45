// A host, the places of its ranks, and their ring as text, for `rondo topo` and the golden tests. Pure.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/host_devices.h"
#include "topology/order.h"

namespace rondo {

/// An indented tree: packages, their NUMA nodes, and in these PCIe switches with GPUs and NICs. Cores of a node share a
/// line; other PCI devices are omitted.
std::string describe_host(const HostWithDevices& host);
/// One line per rank.
std::string describe_places(const HostWithDevices& host, std::span<const DevicePlacement> places);
/// The ring of a communicator whose ranks are bound to these places. `order`: local_order() of them. Consecutive hops
/// with the same crossing share a line; then the number of crossings of each kind of link. The ring of ranks on devices
/// goes by rank, and only that is printed.
std::string describe_ring(const HostWithDevices& host, std::span<const DevicePlacement> places,
                          const std::optional<LocalOrder>& order);
/// The ranks in the order of that ring.
std::vector<int> ring_of(std::span<const DevicePlacement> places, const std::optional<LocalOrder>& order);
/// True if the ranks use device memory.
bool on_devices(std::span<const DevicePlacement> places);

/// "core 3 (CPUs 3,35) of NUMA node 0, GPU 0, NIC mlx5_0"
std::string describe_place(const HostWithDevices& host, const DevicePlacement& place);

/// The drawn part of the PCI tree: GPUs, NICs, and bridges that join several of them. A port with a single device is
/// omitted. Host bridges count as bridges. `gpu`, `nic`: indices, or -1.
struct PciItem {
  int pci = -1;
  int gpu = -1, nic = -1;
  std::vector<PciItem> parts;
};
/// The items of one place; devices with unknown place have package and numa -1.
std::vector<PciItem> pci_items(const HostWithDevices& host, int package, int numa);

/// Number of hops over each kind of link, by Crossing. A ring of two has two hops, a ring of one has none.
std::array<int, kNumCrossings> ring_crossings(const Hops& hops, std::span<const int> ring);
std::string_view crossing_name(Crossing crossing);  // "socket link"

std::string size_text(uint64_t bytes);

}  // namespace rondo
