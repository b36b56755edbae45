// A host's processors as plain data: packages, NUMA nodes, cores and caches. host_reader.h reads it through hwloc.
// `rondo topo` adds the devices (tools/topology/host_devices.h).
//
// Cores, PUs, NUMA nodes and packages are numbered from 0 in the machine's order (hwloc's logical index): neighbours in
// number are physical neighbours. `os` is the kernel's number of the same object. An index of -1 means none or unknown.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

struct HostTopology {
  std::string name;           // of the host; empty: unknown
  bool this_machine = false;  // read from the kernel of this process's machine
  std::vector<Package> packages;
  std::vector<NumaNode> nodes;
  std::vector<uint32_t> node_distances;  // [a * nodes.size() + b], from the firmware; empty: unknown
  std::vector<Core> cores;
  std::vector<Pu> pus;
  std::vector<DataCache> caches;
};

/// Restricts the allowed PUs to these (the kernel's numbers).
void restrict_pus(HostTopology& host, std::span<const int> os_cpus);

/// "0-3,8,10-11" for the numbers in any order; empty: "none".
std::string cpu_list_text(std::vector<int> numbers);
/// The kernel's numbers of these PUs.
std::vector<int> os_numbers(const HostTopology& host, std::span<const int> pus);

}  // namespace rondo
