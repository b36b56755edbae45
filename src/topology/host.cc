#include "topology/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

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

std::vector<int> ancestors(const HostTopology& host, int at) {
  std::vector<int> chain;  // starts with the device itself
  for (; at >= 0; at = host.pci[static_cast<size_t>(at)].parent) chain.push_back(at);
  return chain;
}

}  // namespace

void join_gpus(HostTopology& host, const GpuMachine& machine) {
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

void restrict_pus(HostTopology& host, std::span<const int> os_cpus) {
  for (Pu& pu : host.pus) pu.allowed = pu.allowed && std::find(os_cpus.begin(), os_cpus.end(), pu.os) != os_cpus.end();
}

Expected<std::vector<int>> parse_cpu_list(std::string_view text) {
  constexpr int kMostCpus = 1 << 16;
  std::vector<bool> named(kMostCpus, false);
  const auto wrong = [&](std::string_view part) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}': '{}' is neither the number of a CPU nor a range such as 4-7", text, part));
  };
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t dash = part.find('-');
    const auto read = [](std::string_view digits, int& value) {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      return error == std::errc() && end == digits.data() + digits.size() && value >= 0 && value < kMostCpus;
    };
    int first = 0, last = 0;
    if (!read(part.substr(0, dash), first)) return wrong(part);
    last = first;
    if (dash != std::string_view::npos && (!read(part.substr(dash + 1), last) || last < first)) return wrong(part);
    for (int n = first; n <= last; ++n) named[static_cast<size_t>(n)] = true;
    if (part.size() == rest.size()) break;
    rest.remove_prefix(part.size() + 1);
  }
  std::vector<int> numbers;
  for (int n = 0; n < kMostCpus; ++n)
    if (named[static_cast<size_t>(n)]) numbers.push_back(n);
  return numbers;
}

std::string cpu_list_text(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ",";
    text += end - i == 1 ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end - 1]);
    i = end;
  }
  return text.empty() ? "none" : text;
}

std::vector<int> os_numbers(const HostTopology& host, std::span<const int> pus) {
  std::vector<int> numbers;
  for (const int pu : pus) numbers.push_back(host.pus[static_cast<size_t>(pu)].os);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

PciWay pci_way(const HostTopology& host, int a, int b) {
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

}  // namespace rondo
