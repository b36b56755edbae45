// A description of a host as plain data: packages, NUMA nodes, cores, caches, the tree of PCI devices, and in it the
// GPUs and network interfaces (NICs). host_reader.h makes one through hwloc. What lies between GPUs beside PCIe, that
// is NVLinks, comes from a GpuMachine (machine.h), whose devices are found here by PCI address.
//
// Cores, PUs, NUMA nodes and packages are numbered from 0 in the order of the machine (hwloc's logical index), so that
// neighbours in number are neighbours in place; `os` is the kernel's number of the same thing. An index of -1 says that
// there is none, or that it is unknown.
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

/// A processing unit: what the kernel calls a CPU, one hardware thread of a core.
struct Pu {
  int os = 0;
  int core = -1;
  bool allowed = true;  // by cgroup and affinity mask
};

struct Core {
  int os = 0;
  int package = -1, numa = -1;  // numa: the nearest node
  std::vector<int> pus;
  std::vector<int> caches;  // of data, the nearest first
};

struct DataCache {
  int level = 1;
  uint64_t size_bytes = 0;
  int line_bytes = 0;
  int num_cores = 0;  // that share it
};

struct NumaNode {
  int os = 0;
  int package = -1;  // -1: of several
  uint64_t memory_bytes = 0;
  int num_cores = 0;  // 0: memory alone
};

struct Package {
  int os = 0;
  std::string model;
};

/// A node of the tree of PCI devices; parents stand before their children.
struct PciNode {
  enum class Kind : uint8_t { kHostBridge, kBridge, kDevice };
  Kind kind = Kind::kDevice;
  int parent = -1;
  std::string address;   // "0000:1b:00.0"; of a host bridge the buses behind it, "0000:[16-1f]"
  std::string name;      // of the device, where it is known
  double link_gbps = 0;  // 10^9 bytes a second upwards, nominal; 0: unknown
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
  std::string name;       // "mlx5_0", or "eth0" where it is no RDMA device
  std::string interface;  // "ib0": of an RDMA device, where it has one
  bool rdma = false;
  int pci = -1;
  int package = -1, numa = -1;
};

struct HostTopology {
  std::string name;           // of the host; empty: unknown
  bool this_machine = false;  // what the kernel says of the machine that this process runs on
  std::vector<Package> packages;
  std::vector<NumaNode> nodes;
  std::vector<uint32_t> node_distances;  // [a * nodes.size() + b], as firmware states them; empty: unknown
  std::vector<Core> cores;
  std::vector<Pu> pus;
  std::vector<DataCache> caches;
  std::vector<PciNode> pci;
  std::vector<HostGpu> gpus;  // in the order of gpu_machine, then those that it lacks
  std::vector<HostNic> nics;
  GpuMachine gpu_machine;  // without devices: nothing is known of the GPUs but their PCIe
};

/// Joins the two descriptions: devices of `machine` become the topology's GPUs, in its order, with their places in the
/// PCI tree where the address is found there. GPUs of the topology that `machine` lacks (other processes' devices) come
/// after them. A device without a place keeps the NUMA node that `machine` says.
void join_gpus(HostTopology& host, const GpuMachine& machine);

/// Allows no other PUs than these (the kernel's numbers), of those that were allowed.
void restrict_pus(HostTopology& host, std::span<const int> os_cpus);

/// "0-3,8,10-11" to the numbers, ascending. Errors: kInvalidArgument.
Expected<std::vector<int>> parse_cpu_list(std::string_view text);
/// And back; empty: "none".
std::string cpu_list_text(std::vector<int> numbers);
/// The kernel's numbers of these PUs.
std::vector<int> os_numbers(const HostTopology& host, std::span<const int> pus);

/// PciPath of two devices of the tree, and how many switches lie between them (kOneSwitch: 1).
struct PciWay {
  PciPath path = PciPath::kUnknown;
  int num_switches = 0;
};
PciWay pci_way(const HostTopology& host, int a, int b);

}  // namespace rondo
