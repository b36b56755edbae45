#include "topology/host_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace rondo {
namespace {

// Domains have four digits here and eight in NVML; letters may be upper or lower case.
struct PciAddress {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  bool operator==(const PciAddress&) const = default;
};
std::optional<PciAddress> read_address(const std::string& text) {
  PciAddress a;
  if (std::sscanf(text.c_str(), "%x:%x:%x.%x", &a.domain, &a.bus, &a.device, &a.function) != 4) return std::nullopt;
  return a;
}

int node_of_os(const HostTopology& host, int os) {
  for (size_t n = 0; n < host.nodes.size(); ++n)
    if (host.nodes[n].os == os) return static_cast<int>(n);
  return -1;
}

std::vector<int> ancestors(const HostWithDevices& host, int at) {
  std::vector<int> chain;  // starts with the device itself
  for (; at >= 0; at = host.pci[static_cast<size_t>(at)].parent) chain.push_back(at);
  return chain;
}

// Smaller is nearer.
std::tuple<int, int> nic_distance(const HostWithDevices& host, const DevicePlacement& p, const HostNic& nic) {
  if (p.gpu >= 0) {
    const HostGpu& gpu = host.gpus[static_cast<size_t>(p.gpu)];
    if (const PciWay way = pci_way(host, gpu.pci, nic.pci);
        way.path != PciPath::kUnknown && way.path != PciPath::kSystem)
      return {static_cast<int>(way.path), way.num_switches};
    constexpr int kSameNode = static_cast<int>(PciPath::kNumaNode), kFarther = static_cast<int>(PciPath::kSystem);
    if (gpu.numa >= 0 && gpu.numa == nic.numa) return {kSameNode, 0};
    return {kFarther, gpu.package >= 0 && gpu.package == nic.package ? 0 : 1};
  }
  if (nic.numa >= 0 && nic.numa == p.numa) return {0, 0};
  return {1, nic.package >= 0 && nic.package == p.package ? 0 : 1};
}

void choose_nics(const HostWithDevices& host, std::vector<DevicePlacement>& places) {
  const bool any_rdma = std::any_of(host.nics.begin(), host.nics.end(), [](const HostNic& n) { return n.rdma; });
  std::vector<int> users(host.nics.size(), 0);
  for (DevicePlacement& p : places) {
    for (size_t i = 0; i < host.nics.size(); ++i) {
      if (any_rdma && !host.nics[i].rdma) continue;
      const auto key = [&](size_t nic) { return std::tuple(nic_distance(host, p, host.nics[nic]), users[nic]); };
      if (p.nic < 0 || key(i) < key(static_cast<size_t>(p.nic))) p.nic = static_cast<int>(i);
    }
    if (p.nic >= 0) ++users[static_cast<size_t>(p.nic)];
  }
}

}  // namespace

void join_gpus(HostWithDevices& host, const GpuMachine& machine) {
  std::vector<HostGpu> joined;
  std::vector<bool> taken(host.gpus.size(), false);
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    const GpuDevice& device = machine.devices[d];
    const auto address = read_address(device.pci);
    HostGpu gpu;
    for (size_t g = 0; address && g < host.gpus.size(); ++g)
      if (read_address(host.gpus[g].address) == address) {  // slices of a device share its address
        gpu = host.gpus[g];
        taken[g] = true;
      }
    if (gpu.pci < 0) {
      gpu.address = device.pci;
      gpu.numa = node_of_os(host, device.numa_node);
      if (gpu.numa >= 0) gpu.package = host.nodes[static_cast<size_t>(gpu.numa)].package;
    }
    if (!device.name.empty()) gpu.name = device.name;
    gpu.device = static_cast<int>(d);
    joined.push_back(std::move(gpu));
  }
  for (size_t g = 0; g < host.gpus.size(); ++g)
    if (!taken[g]) joined.push_back(host.gpus[g]);
  host.gpus = std::move(joined);
  host.gpu_machine = machine;
}

PciWay pci_way(const HostWithDevices& host, int a, int b) {
  if (a < 0 || b < 0) return {};
  if (a == b) return {PciPath::kSameBoard, 0};
  const std::vector<int> up_a = ancestors(host, a), up_b = ancestors(host, b);
  for (size_t i = 1; i < up_a.size(); ++i) {
    const auto met = std::find(up_b.begin() + 1, up_b.end(), up_a[i]);
    if (met == up_b.end()) continue;
    const PciNode& shared = host.pci[static_cast<size_t>(up_a[i])];
    if (shared.kind == PciNode::Kind::kHostBridge) return {PciPath::kHostBridge, 0};
    // A switch is an upstream port with downstream ports below it: two levels to the device behind it.
    const auto levels = static_cast<int>(std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(i), met - up_b.begin()));
    const int num_switches = std::max(1, (levels + 1) / 2);
    return {num_switches == 1 ? PciPath::kOneSwitch : PciPath::kSwitches, num_switches};
  }
  const PciNode &x = host.pci[static_cast<size_t>(a)], &y = host.pci[static_cast<size_t>(b)];
  if (x.numa < 0 || y.numa < 0) return {};
  return {x.numa == y.numa ? PciPath::kNumaNode : PciPath::kSystem, 0};
}

std::vector<int> usable_gpus(const HostWithDevices& host) {
  std::vector<int> gpus;
  for (size_t g = 0; g < host.gpus.size(); ++g)
    if (host.gpu_machine.devices.empty() || host.gpus[g].device >= 0) gpus.push_back(static_cast<int>(g));
  return gpus;
}

Expected<std::vector<DevicePlacement>> place_ranks_and_devices(const HostWithDevices& host, int num_ranks,
                                                               std::span<const int> gpus) {
  const auto wrong = [](std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); };
  if (num_ranks >= 1 && !gpus.empty() && std::ssize(gpus) != num_ranks)
    return wrong(fmt::format("{} GPUs are named for {} ranks", gpus.size(), num_ranks));
  std::vector<GpuPlace> near;
  for (size_t r = 0; r < gpus.size() && num_ranks >= 1; ++r) {
    if (gpus[r] < 0 || std::cmp_greater_equal(gpus[r], host.gpus.size()))
      return wrong(fmt::format("rank {}: there is no GPU {}: there are {}", r, gpus[r], host.gpus.size()));
    const HostGpu& gpu = host.gpus[static_cast<size_t>(gpus[r])];
    near.push_back({gpu.package, gpu.numa});
  }
  RONDO_TRY_ASSIGN(std::vector<Placement> cores, place_ranks(host, num_ranks, near));
  std::vector<DevicePlacement> places;
  for (size_t r = 0; r < cores.size(); ++r) places.push_back({std::move(cores[r]), gpus.empty() ? -1 : gpus[r]});
  choose_nics(host, places);
  return places;
}

std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const DevicePlacement> places) {
  return local_order(host, std::vector<Placement>(places.begin(), places.end()));
}

}  // namespace rondo
