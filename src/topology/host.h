// A host as plain data: packages, NUMA nodes, cores, caches, and the tree of PCI devices with its GPUs and network
// interfaces (NICs). host_reader.h reads it through hwloc. NVLinks between GPUs come from a GpuMachine (machine.h),
// whose devices are matched by PCI address.
//
// Cores, PUs, NUMA nodes and packages are numbered from 0 in the machine's order (hwloc's logical index): neighbours in
// number are physical neighbours. `os` is the kernel's number of the same object. An index of -1 means none or unknown.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "topology/machine.h"

namespace rondo {

/// A processing unit: one hardware thread of a core, the kernel's CPU.
struct Pu {
  int os = 0;
  int core = -1;
  bool allowed = true;  // by cgroup and affinity mask
};

struct Core {
  int os = 0;
  int package = -1, numa = -1;  // numa: the nearest node
  std::vector<int> pus;
  std::vector<int> caches;  // data caches, the nearest first
};

struct DataCache {
  int level = 1;
  uint64_t size_bytes = 0;
  int line_bytes = 0;
  int num_cores = 0;  // that share it
};

struct NumaNode {
  int os = 0;
  int package = -1;  // -1: of several packages
  uint64_t memory_bytes = 0;
  int num_cores = 0;  // 0: memory only
};

struct Package {
  int os = 0;
  std::string model;
};

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
  int pci = -1;  // HostTopology::pci
  int package = -1, numa = -1;
  int device = -1;  // HostTopology::gpu_machine
};

struct HostNic {
  std::string name;       // "mlx5_0", or "eth0" if it is not an RDMA device
  std::string interface;  // "ib0": of an RDMA device, if it has one
  bool rdma = false;
  int pci = -1;
  int package = -1, numa = -1;
};

struct HostTopology {
  std::string name;           // of the host; empty: unknown
  bool this_machine = false;  // read from the kernel of this process's machine
  std::vector<Package> packages;
  std::vector<NumaNode> nodes;
  std::vector<uint32_t> node_distances;  // [a * nodes.size() + b], from the firmware; empty: unknown
  std::vector<Core> cores;
  std::vector<Pu> pus;
  std::vector<DataCache> caches;
  std::vector<PciNode> pci;
  std::vector<HostGpu> gpus;  // in the order of gpu_machine, then the remaining ones
  std::vector<HostNic> nics;
  GpuMachine gpu_machine;  // no devices: only the GPUs' PCIe is known
};

/// Joins the two descriptions: devices of `machine` become the topology's GPUs, in its order, with their place in the
/// PCI tree if the address is found there. The topology's other GPUs (other processes' devices) follow. A device
/// without a place keeps the NUMA node of `machine`.
void join_gpus(HostTopology& host, const GpuMachine& machine);

/// Restricts the allowed PUs to these (the kernel's numbers).
void restrict_pus(HostTopology& host, std::span<const int> os_cpus);

/// "0-3,8,10-11" to the numbers, ascending. Errors: kInvalidArgument.
Expected<std::vector<int>> parse_cpu_list(std::string_view text);
/// The inverse; empty: "none".
std::string cpu_list_text(std::vector<int> numbers);
/// The kernel's numbers of these PUs.
std::vector<int> os_numbers(const HostTopology& host, std::span<const int> pus);

/// PciPath of two devices of the tree, and the number of switches between them (kOneSwitch: 1).
struct PciWay {
  PciPath path = PciPath::kUnknown;
  int num_switches = 0;
};
PciWay pci_way(const HostTopology& host, int a, int b);

}  // namespace rondo
