#include "device/topology/probe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/read_file.h"
#include "device/driver/driver.h"
#include "device/topology/nvml.h"

namespace rondo {
namespace {

using cuda::check;
using cuda::Device;
using cuda::Driver;

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

int attribute(const Driver* d, int which, Device device) {
  int value = 0;
  return d->device_attribute(&value, which, device) == cuda::kSuccess ? value : 0;
}

CpuVendor cpu_vendor(const std::string& root) {
#if defined(__aarch64__) || defined(__arm__)
  return CpuVendor::kArm;
#else
  const std::string first_cpu = read_file(root + "/proc/cpuinfo").value_or("");
  if (first_cpu.find("GenuineIntel") != std::string::npos) return CpuVendor::kIntel;
  return first_cpu.find("AuthenticAMD") != std::string::npos ? CpuVendor::kAmd : CpuVendor::kOther;
#endif
}

// A group of type "identity" is not translated; "DMA" and "DMA-FQ" translate. Without groups there is no IOMMU.
Known iommu_translates(const std::string& root, const std::string& pci) {
  const std::string type = first_line_of(root + "/sys/bus/pci/devices/" + pci + "/iommu_group/type");
  if (!type.empty()) return type == "identity" ? Known::kNo : Known::kYes;
  std::error_code unknown;
  const bool no_groups = std::filesystem::is_empty(root + "/sys/kernel/iommu_groups", unknown);
  return no_groups && !unknown ? Known::kNo : Known::kUnknown;
}

int numa_node_of_pci(const std::string& root, const std::string& pci) {
  const std::string numa = first_line_of(root + "/sys/bus/pci/devices/" + pci + "/numa_node");
  return numa.empty() ? -1 : std::atoi(numa.c_str());
}

Expected<GpuDevice> probe_device(const Driver* d, Device device, const std::string& root) {
  GpuDevice g;
  char text[256] = {};
  RONDO_TRY(check(d->device_name(text, sizeof text - 1, device), "cuDeviceGetName"));
  g.name = text;
  std::ranges::replace(g.name, '"', '\'');
  RONDO_TRY(check(d->device_pci_bus_id(text, sizeof text - 1, device), "cuDeviceGetPCIBusId"));
  g.pci = lower(text);
  size_t bytes = 0;
  RONDO_TRY(check(d->device_total_memory(&bytes, device), "cuDeviceTotalMem"));
  g.memory_gib = std::round(static_cast<double>(bytes >> 20) / 1024 * 10) / 10;
  g.capability_major = attribute(d, cuda::kAttrComputeMajor, device);
  g.capability_minor = attribute(d, cuda::kAttrComputeMinor, device);
  g.multiprocessors = attribute(d, cuda::kAttrMultiprocessorCount, device);
  // kHz, bits, two transfers per clock.
  g.memory_gbps = 2e-6 / 8 * attribute(d, cuda::kAttrMemoryClockRate, device) *
                  attribute(d, cuda::kAttrGlobalMemoryBusWidth, device);
  g.memory_gbps = std::floor(g.memory_gbps);
  g.numa_node = numa_node_of_pci(root, g.pci);
  return g;
}

// Adds NVML's information about one device. Missing values stay unknown.
void add_nvml(const Nvml* n, NvmlDevice handle, GpuDevice& g) {
  unsigned value = 0, pending = 0;
  if (n->mig_mode != nullptr && n->mig_mode(handle, &value, &pending) == kNvmlSuccess) g.mig = value != 0;
  if (n->pcie_generation != nullptr && n->pcie_generation(handle, &value) == kNvmlSuccess)
    g.pcie_generation = static_cast<int>(value);
  if (n->pcie_width != nullptr && n->pcie_width(handle, &value) == kNvmlSuccess) g.pcie_lanes = static_cast<int>(value);
}

// Every active link leads to a switch, to a device visible to this process, or elsewhere.
void add_nvlinks(const Nvml* n, NvmlDevice handle, size_t self, GpuMachine& m) {
  if (n->nvlink_state == nullptr) return;
  for (unsigned link = 0; link < kNvmlMostLinks; ++link) {
    int active = 0, type = -1;
    const int r = n->nvlink_state(handle, link, &active);
    if (r == kNvmlInvalidArgument || r == kNvmlNotSupported) return;  // no such link, or none at all
    if (r != kNvmlSuccess || active == 0) continue;
    if (n->nvlink_remote_type != nullptr && n->nvlink_remote_type(handle, link, &type) == kNvmlSuccess &&
        type == kNvmlRemoteSwitch) {
      ++m.devices[self].switch_links;
      continue;
    }
    NvmlPciInfo pci{};
    if (n->nvlink_remote_pci == nullptr || n->nvlink_remote_pci(handle, link, &pci) != kNvmlSuccess) continue;
    for (size_t other = 0; other < m.devices.size(); ++other) {
      unsigned domain = 0, bus = 0, device = 0;
      const bool read = std::sscanf(m.devices[other].pci.c_str(), "%x:%x:%x", &domain, &bus, &device) == 3;
      if (other != self && read && domain == pci.domain && bus == pci.bus && device == pci.device)
        ++m.pair(self, other).nvlinks;
    }
  }
}

PciPath path_of_level(int level) {
  switch (level) {
    case kNvmlSameBoard: return PciPath::kSameBoard;
    case kNvmlOneSwitch: return PciPath::kOneSwitch;
    case kNvmlSwitches: return PciPath::kSwitches;
    case kNvmlHostBridge: return PciPath::kHostBridge;
    case kNvmlNumaNode: return PciPath::kNumaNode;
    case kNvmlSystem: return PciPath::kSystem;
    default: return PciPath::kUnknown;
  }
}

std::string kernel_path(const std::string& root, const std::string& pci) {
  std::error_code missing;
  return std::filesystem::canonical(root + "/sys/bus/pci/devices/" + pci, missing);
}

// Adds the driver's information on two devices.
Status add_access(const Driver* d, size_t a, size_t b, GpuPair& p) {
  int can = 0;
  Device first = 0, second = 0;
  RONDO_TRY(check(d->device_get(&first, static_cast<int>(a)), "cuDeviceGet"));
  RONDO_TRY(check(d->device_get(&second, static_cast<int>(b)), "cuDeviceGet"));
  RONDO_TRY(check(d->device_can_access_peer(&can, first, second), "cuDeviceCanAccessPeer"));
  p.access = can != 0;
  int atomics = 0;
  if (p.access && d->device_p2p_attribute(&atomics, cuda::kP2pNativeAtomic, first, second) == cuda::kSuccess)
    p.atomics = atomics != 0;
  return {};
}

// Adds the information of NVML and the kernel.
void add_path(const Nvml* n, NvmlDevice first, NvmlDevice second, const GpuDevice& a, const GpuDevice& b,
              const std::string& root, GpuPair& p) {
  const bool both = first != nullptr && second != nullptr;
  if (int level = 0; both && n->common_ancestor != nullptr && n->common_ancestor(first, second, &level) == kNvmlSuccess)
    p.path = path_of_level(level);
  else p.path = compare_pci_paths(kernel_path(root, a.pci), kernel_path(root, b.pci), a.numa_node, b.numa_node);
  for (const int index : {kNvmlP2pRead, kNvmlP2pWrite}) {
    int status = kNvmlP2pOk;
    if (!both || n->p2p_status == nullptr || n->p2p_status(first, second, index, &status) != kNvmlSuccess) continue;
    if (p.refused.empty()) p.refused = p2p_status_text(status);
  }
}

NvmlDevice handle_of(const Nvml* n, const GpuDevice& g) {
  NvmlDevice handle = nullptr;
  return n != nullptr && n->device_by_pci(g.pci.c_str(), &handle) == kNvmlSuccess ? handle : nullptr;
}

}  // namespace

std::string uuid_text(const cuda::Uuid& uuid) {
  std::string text;
  for (size_t i = 0; i < sizeof uuid.bytes; ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid.bytes[i]);
  return text;
}

int numa_node_of_device(int ordinal, const std::string& root) {
  const Driver* d = cuda::driver();
  Device device = 0;
  char pci[64] = {};
  if (d == nullptr || d->device_get(&device, ordinal) != cuda::kSuccess ||
      d->device_pci_bus_id(pci, sizeof pci - 1, device) != cuda::kSuccess)
    return -1;
  return numa_node_of_pci(root, lower(pci));
}

PciPath compare_pci_paths(std::string_view a, std::string_view b, int numa_a, int numa_b) {
  if (a.empty() || b.empty()) return PciPath::kUnknown;
  if (a == b) return PciPath::kSameBoard;  // MIG slices
  // The common components of both paths. Each bridge is one.
  size_t common = 0;
  for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool end_a = i == a.size() || a[i] == '/', end_b = i == b.size() || b[i] == '/';
    if (end_a && end_b && i > 0) common = i;
    if (end_a != end_b || (i < std::min(a.size(), b.size()) && a[i] != b[i])) break;
  }
  const auto count = [](std::string_view text) { return static_cast<long>(std::ranges::count(text, '/')); };
  const std::string_view shared = a.substr(0, common);
  const size_t root_at = shared.rfind("/pci");
  if (root_at == std::string_view::npos)  // no common root complex
    return numa_a >= 0 && numa_a == numa_b ? PciPath::kNumaNode : PciPath::kSystem;
  if (shared.find('/', root_at + 1) == std::string_view::npos) return PciPath::kHostBridge;  // common root
  // Below a common bridge: the upstream port, one downstream port per device, then the device. That is one switch.
  constexpr long kOneSwitch = 2;
  const long deepest = std::max(count(a.substr(common)), count(b.substr(common)));
  return deepest <= kOneSwitch ? PciPath::kOneSwitch : PciPath::kSwitches;
}

Expected<GpuMachine> probe_machine(const std::string& root) {
  RONDO_TRY_ASSIGN(const Driver* d, cuda::need_driver());
  const Nvml* n = nvml();
  GpuMachine m;
  char text[256] = {};
  if (gethostname(text, sizeof text - 1) == 0) m.host = text;
  RONDO_TRY(check(d->driver_version(&m.driver_version), "cuDriverGetVersion"));
  m.cpu = cpu_vendor(root);
  if (n != nullptr && n->system_driver_version != nullptr &&
      n->system_driver_version(text, sizeof text - 1) == kNvmlSuccess)
    m.nvml_version = text;
  int count = 0;
  RONDO_TRY(check(d->device_count(&count), "cuDeviceGetCount"));
  std::vector<NvmlDevice> handles;
  for (int i = 0; i < count; ++i) {
    Device device = 0;
    RONDO_TRY(check(d->device_get(&device, i), "cuDeviceGet"));
    RONDO_TRY_ASSIGN(GpuDevice g, probe_device(d, device, root));
    const NvmlDevice handle = handle_of(n, g);
    if (handle != nullptr) add_nvml(n, handle, g);
    cuda::Uuid uuid{};
    RONDO_TRY(check(d->device_uuid(&uuid, device), "cuDeviceGetUuid"));
    g.uuid = (g.mig ? "MIG-" : "GPU-") + uuid_text(uuid);
    handles.push_back(handle);
    const Known translated = iommu_translates(root, g.pci);
    if (i == 0 || translated == Known::kYes) m.iommu = translated;
    m.devices.push_back(std::move(g));
  }
  m.pairs.resize(m.devices.size() * m.devices.size());
  for (size_t a = 0; a < m.devices.size(); ++a)
    for (size_t b = 0; b < m.devices.size(); ++b) {
      if (a == b) continue;
      GpuPair& p = m.pair(a, b);
      RONDO_TRY(add_access(d, a, b, p));
      add_path(n, handles[a], handles[b], m.devices[a], m.devices[b], root, p);
      if (p.access) p.refused.clear();
    }
  for (size_t a = 0; a < m.devices.size(); ++a)
    if (handles[a] != nullptr && !m.devices[a].mig) add_nvlinks(n, handles[a], a, m);
  return m;
}

void add_hidden_device(GpuMachine& m, GpuDevice device, const std::string& root) {
  const Nvml* n = nvml();
  const NvmlDevice handle = handle_of(n, device);
  if (handle != nullptr) add_nvml(n, handle, device);
  device.numa_node = numa_node_of_pci(root, device.pci);
  const size_t num = m.devices.size();
  GpuMachine all = m;
  all.devices.push_back(std::move(device));
  all.pairs.assign((num + 1) * (num + 1), {});
  for (size_t a = 0; a < num; ++a) {
    for (size_t b = 0; b < num; ++b) all.pair(a, b) = m.pair(a, b);
    for (const auto& [x, y] : {std::pair(a, num), std::pair(num, a)}) {
      GpuPair& p = all.pair(x, y);
      add_path(n, handle_of(n, all.devices[x]), handle_of(n, all.devices[y]), all.devices[x], all.devices[y], root, p);
      p.access = p.refused.empty();
    }
  }
  if (handle != nullptr && !all.devices[num].mig) add_nvlinks(n, handle, num, all);
  for (size_t a = 0; a < num; ++a) all.pair(a, num).nvlinks = all.pair(num, a).nvlinks;
  m = std::move(all);
}

}  // namespace rondo
