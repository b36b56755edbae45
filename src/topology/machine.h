// A host's GPUs and the links between them, as plain data. probe.h reads this machine. `rondo info --machine` reads a
// description of another one (tools/topology/scene.h), so that rondo's choices for it can be shown.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rondo {

/// The PCIe path between two devices; NVML's levels and NCCL's names. Ordered: later is farther.
enum class PciPath : uint8_t {
  kSameBoard,   // loc
  kOneSwitch,   // pix: at most one PCIe switch
  kSwitches,    // pxb: several switches, no host bridge
  kHostBridge,  // phb: a host bridge, the processor's own PCIe
  kNumaNode,    // node: several host bridges of one NUMA node
  kSystem,      // sys: the link between sockets
  kUnknown,
};
std::string_view path_name(PciPath path);  // "pix"
std::string_view path_text(PciPath path);  // "one PCIe switch"

enum class CpuVendor : uint8_t { kIntel, kAmd, kArm, kOther };

enum class Known : uint8_t { kNo, kYes, kUnknown };

struct GpuDevice {
  std::string name;
  std::string uuid;  // as NVML and nvidia-smi print it
  std::string pci;   // domain:bus:device.function
  int capability_major = 0, capability_minor = 0;
  int multiprocessors = 0;
  double memory_gib = 0;
  double memory_gbps = 0;                   // of its memory, sum of reads and writes; 0: unknown
  int pcie_generation = 0, pcie_lanes = 0;  // of its slot, maximum; 0: unknown
  int numa_node = -1;                       // -1: unknown
  int switch_links = 0;                     // NVLinks to an NVSwitch
  bool mig = false;                         // a slice of a device in MIG mode
};

struct GpuPair {
  bool access = false;   // the driver lets each read and write the other's memory
  bool atomics = false;  // and use atomics there
  int nvlinks = 0;       // directly between the two
  PciPath path = PciPath::kUnknown;
  std::string refused;  // without access: NVML's reason; empty: unknown
};

struct GpuMachine {
  std::string host;
  CpuVendor cpu = CpuVendor::kOther;
  int driver_version = 0;         // 12040 is 12.4
  std::string nvml_version;       // the kernel driver's; empty: no NVML
  Known iommu = Known::kUnknown;  // it translates the devices' addresses
  Known acs = Known::kUnknown;    // switches redirect writes between devices up to the processor
  std::vector<GpuDevice> devices;
  std::vector<GpuPair> pairs;  // [a * devices.size() + b]

  const GpuPair& pair(size_t a, size_t b) const { return pairs[a * devices.size() + b]; }
  GpuPair& pair(size_t a, size_t b) { return pairs[a * devices.size() + b]; }
};

/// The place of a rank.
struct RankPlace {
  uint64_t host = 0;  // equal numbers: one host
  uint64_t process = 0;
  uint32_t device = 0;     // index into GpuMachine::devices, if `host` is the described machine
  uint64_t container = 0;  // equal numbers: each can open the other's IPC handles and files
};

}  // namespace rondo
