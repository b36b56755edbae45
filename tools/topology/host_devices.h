// A host with its devices: the tree of PCI devices, GPUs and network interfaces (NICs), and the places of ranks near
// them. For `rondo topo`. NVLinks between GPUs come from a GpuMachine (machine.h), whose devices are matched by PCI
// address.
//
// Thread safety: values and pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topology/host.h"
#include "topology/local_order.h"
#include "topology/machine.h"
#include "topology/places.h"

namespace rondo {

/// A node of the tree of PCI devices. Parents precede their children.
struct PciNode {
  enum class Kind : uint8_t { kHostBridge, kBridge, kDevice };
  Kind kind = Kind::kDevice;
  int parent = -1;
  std::string address;   // "0000:1b:00.0"; for a host bridge its buses, "0000:[16-1f]"
  std::string name;      // of the device, if known
  double link_gbps = 0;  // 10^9 bytes per second upwards, nominal; 0: unknown
  int package = -1, numa = -1;
};

struct HostGpu {
  std::string name;
  std::string address;
  int pci = -1;  // HostWithDevices::pci
  int package = -1, numa = -1;
  int device = -1;  // HostWithDevices::gpu_machine
};

struct HostNic {
  std::string name;       // "mlx5_0", or "eth0" if it is not an RDMA device
  std::string interface;  // "ib0": of an RDMA device, if it has one
  bool rdma = false;
  int pci = -1;
  int package = -1, numa = -1;
};

struct HostWithDevices : HostTopology {
  std::vector<PciNode> pci = {};
  std::vector<HostGpu> gpus = {};  // in the order of gpu_machine, then the remaining ones
  std::vector<HostNic> nics = {};
  GpuMachine gpu_machine = {};  // no devices: only the GPUs' PCIe is known
};

/// Joins the two descriptions: devices of `machine` become the topology's GPUs, in its order, with their place in the
/// PCI tree if the address is found there. The topology's other GPUs (other processes' devices) follow. A device
/// without a place keeps the NUMA node of `machine`.
void join_gpus(HostWithDevices& host, const GpuMachine& machine);

/// PciPath of two devices of the tree, and the number of switches between them (kOneSwitch: 1).
struct PciWay {
  PciPath path = PciPath::kUnknown;
  int num_switches = 0;
};
PciWay pci_way(const HostWithDevices& host, int a, int b);

/// The GPUs for one rank each: gpu_machine's, or all if that is unknown.
std::vector<int> usable_gpus(const HostWithDevices& host);

/// The place of a rank with its devices. Indices are HostWithDevices'.
struct DevicePlacement : Placement {
  int gpu = -1;
  int nic = -1;  // the nearest, see below
};

/// By rank. `gpus`: one per rank; empty: no GPUs. The NIC is an RDMA device, if there are any: the one with the
/// shortest PCI path to the rank's GPU, else on the core's NUMA node, else in its package; among equals the one with
/// the fewest ranks. Errors: those of place_ranks; kInvalidArgument (a nonexistent GPU). O(ranks * NICs + PUs).
Expected<std::vector<DevicePlacement>> place_ranks_and_devices(const HostWithDevices& host, int num_ranks,
                                                               std::span<const int> gpus = {});
/// The order of ranks with these places (local_order.h).
std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const DevicePlacement> places);

}  // namespace rondo
