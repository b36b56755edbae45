#include "support/fake_cuda/fake_machine.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "device/topology/nvml.h"

namespace rondo::testing {
namespace {

struct Pci {
  unsigned domain = 0, bus = 0, device = 0;
};
Pci pci_of(const GpuDevice& d) {
  Pci p;
  RONDO_CHECK(std::sscanf(d.pci.c_str(), "%x:%x:%x", &p.domain, &p.bus, &p.device) == 3);
  return p;
}

std::unique_ptr<GpuMachine> played_machine;
Nvml table;

NvmlDevice handle_of(size_t i) { return reinterpret_cast<NvmlDevice>(i + 1); }
size_t index_of(NvmlDevice d) { return reinterpret_cast<size_t>(d) - 1; }

// Links of a device: first to the switch, then to each other device in order.
enum class Far { kNone, kSwitch, kDevice };
Far far_end(size_t self, unsigned link, size_t& other) {
  const auto switched = static_cast<unsigned>(played_machine->devices[self].switch_links);
  if (link < switched) return Far::kSwitch;
  unsigned first = switched;
  for (other = 0; other < played_machine->devices.size(); ++other) {
    first += other == self ? 0 : static_cast<unsigned>(played_machine->pair(self, other).nvlinks);
    if (link < first) return Far::kDevice;
  }
  return Far::kNone;
}

int device_by_pci(const char* pci, NvmlDevice* device) {
  for (size_t i = 0; i < played_machine->devices.size(); ++i)
    if (played_machine->devices[i].pci == pci) return *device = handle_of(i), kNvmlSuccess;
  return kNvmlInvalidArgument;
}
int nvlink_state(NvmlDevice d, unsigned link, int* active) {
  constexpr unsigned kLinks = 18;
  size_t other = 0;
  if (link >= kLinks) return kNvmlInvalidArgument;
  *active = far_end(index_of(d), link, other) != Far::kNone ? 1 : 0;
  return kNvmlSuccess;
}
int nvlink_remote_type(NvmlDevice d, unsigned link, int* type) {
  size_t other = 0;
  const Far far = far_end(index_of(d), link, other);
  if (far == Far::kNone) return kNvmlInvalidArgument;
  *type = far == Far::kSwitch ? kNvmlRemoteSwitch : kNvmlRemoteGpu;
  return kNvmlSuccess;
}
int nvlink_remote_pci(NvmlDevice d, unsigned link, NvmlPciInfo* pci) {
  size_t other = 0;
  if (far_end(index_of(d), link, other) != Far::kDevice) return kNvmlNotSupported;
  const Pci p = pci_of(played_machine->devices[other]);
  *pci = {};
  pci->domain = p.domain, pci->bus = p.bus, pci->device = p.device;
  return kNvmlSuccess;
}
int p2p_status(NvmlDevice a, NvmlDevice b, int, int* status) {
  const GpuPair& p = played_machine->pair(index_of(a), index_of(b));
  *status = kNvmlP2pOk;
  for (int s = 1; s <= 5; ++s)
    if (!p.access && p2p_status_text(s) == p.refused) *status = s;
  return kNvmlSuccess;
}
int common_ancestor(NvmlDevice a, NvmlDevice b, int* level) {
  constexpr int kLevels[] = {kNvmlSameBoard,  kNvmlOneSwitch, kNvmlSwitches,
                             kNvmlHostBridge, kNvmlNumaNode,  kNvmlSystem};
  const PciPath path = played_machine->pair(index_of(a), index_of(b)).path;
  if (path == PciPath::kUnknown) return kNvmlNotSupported;
  *level = kLevels[static_cast<int>(path)];
  return kNvmlSuccess;
}
int mig_mode(NvmlDevice d, unsigned* current, unsigned* pending) {
  *current = *pending = played_machine->devices[index_of(d)].mig ? 1 : 0;
  return kNvmlSuccess;
}
int pcie_generation(NvmlDevice d, unsigned* generation) {
  *generation = static_cast<unsigned>(played_machine->devices[index_of(d)].pcie_generation);
  return kNvmlSuccess;
}
int pcie_width(NvmlDevice d, unsigned* lanes) {
  *lanes = static_cast<unsigned>(played_machine->devices[index_of(d)].pcie_lanes);
  return kNvmlSuccess;
}
int system_driver_version(char* text, unsigned length) {
  std::snprintf(text, length, "%s", played_machine->nvml_version.c_str());
  return kNvmlSuccess;
}

}  // namespace

FakeMachine fake_machine(const GpuMachine& machine) {
  FakeMachine m;
  m.driver_version = machine.driver_version;
  for (const GpuDevice& d : machine.devices) {
    FakeDevice f;
    const Pci p = pci_of(d);
    f.name = d.name;
    f.pci_domain = p.domain, f.pci_bus = p.bus, f.pci_device = p.device;
    f.major = d.capability_major, f.minor = d.capability_minor;
    f.multiprocessors = d.multiprocessors;
    f.memory_bytes = static_cast<uint64_t>(d.memory_gib * 1024) << 20;
    // The clock for a bus of 1024 bits: two transfers of 128 bytes.
    f.attributes[cuda::kAttrGlobalMemoryBusWidth] = 1024;
    f.attributes[cuda::kAttrMemoryClockRate] = static_cast<int>(d.memory_gbps * 1e6 / 256 + 1);
    m.devices.push_back(std::move(f));
  }
  const size_t n = machine.devices.size();
  m.peers.assign(n, std::vector<FakePeer>(n));
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b) {
      m.peers[a][b].access = a == b || machine.pair(a, b).access;
      m.peers[a][b].native_atomics = a == b || machine.pair(a, b).atomics;
    }
  return m;
}

FakeNvml::FakeNvml(GpuMachine machine) {
  RONDO_CHECK(played_machine == nullptr);
  played_machine = std::make_unique<GpuMachine>(std::move(machine));
  table = {};
  table.init = [] { return kNvmlSuccess; };
#define RONDO_PLAY(member) table.member = &member
  RONDO_PLAY(system_driver_version);
  RONDO_PLAY(device_by_pci);
  RONDO_PLAY(nvlink_state);
  RONDO_PLAY(nvlink_remote_type);
  RONDO_PLAY(nvlink_remote_pci);
  RONDO_PLAY(p2p_status);
  RONDO_PLAY(common_ancestor);
  RONDO_PLAY(mig_mode);
  RONDO_PLAY(pcie_generation);
  RONDO_PLAY(pcie_width);
#undef RONDO_PLAY
  set_nvml(&table);
}

FakeNvml::~FakeNvml() {
  set_nvml(nullptr);
  played_machine.reset();
}

}  // namespace rondo::testing
