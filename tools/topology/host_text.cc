#include "topology/host_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace rondo {
namespace {

std::string plural(size_t n, std::string_view one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }
std::string times_text(int n) { return n == 1 ? "once" : n == 2 ? "twice" : fmt::format("{} times", n); }
std::string link_text(double gbps) { return gbps > 0 ? fmt::format(", {:.3g} GB/s", gbps) : ""; }

std::string caches_text(const HostWithDevices& host) {
  std::map<std::tuple<int, uint64_t, int>, int> kinds;  // (level, size, cores) -> count
  for (const DataCache& c : host.caches) ++kinds[{c.level, c.size_bytes, c.num_cores}];
  std::string text;
  for (const auto& [kind, count] : kinds) {
    const auto& [level, bytes, cores] = kind;
    text += fmt::format("{}{} x L{} of {} for {}", text.empty() ? "" : ", ", count, level, size_text(bytes),
                        cores == 1 ? "a core" : plural(static_cast<size_t>(cores), "core"));
  }
  return text;
}

// Items of `at` and below it; empty without GPUs and NICs.
std::vector<PciItem> items_below(const HostWithDevices& host, const std::vector<std::vector<int>>& children, int at) {
  std::vector<PciItem> parts;
  for (const int child : children[static_cast<size_t>(at)])
    for (PciItem& item : items_below(host, children, child)) parts.push_back(std::move(item));
  for (size_t g = 0; g < host.gpus.size(); ++g)
    if (host.gpus[g].pci == at) parts.push_back({at, static_cast<int>(g), -1, {}});
  for (size_t n = 0; n < host.nics.size(); ++n)
    if (host.nics[n].pci == at) parts.push_back({at, -1, static_cast<int>(n), {}});
  const bool bridge = host.pci[static_cast<size_t>(at)].kind != PciNode::Kind::kDevice;
  if (!bridge || parts.size() < 2) return parts;
  PciItem self{at, -1, -1, std::move(parts)};
  return {std::move(self)};
}

void add_item(const HostWithDevices& host, const PciItem& item, int depth, std::string& text) {
  text += std::string(static_cast<size_t>(2 * depth), ' ');
  const PciNode* node = item.pci >= 0 ? &host.pci[static_cast<size_t>(item.pci)] : nullptr;
  if (item.gpu >= 0) {
    const HostGpu& gpu = host.gpus[static_cast<size_t>(item.gpu)];
    text += fmt::format("GPU {}", item.gpu);
    for (const std::string& part : {gpu.name, gpu.address})
      if (!part.empty()) text += (part == gpu.name ? ": " : ", ") + part;
    if (node != nullptr) text += link_text(node->link_gbps);
    if (gpu.device >= 0)
      if (const int links = host.gpu_machine.devices[static_cast<size_t>(gpu.device)].switch_links; links > 0)
        text += fmt::format(", {} to an NVSwitch", plural(static_cast<size_t>(links), "NVLink"));
  } else if (item.nic >= 0) {
    const HostNic& nic = host.nics[static_cast<size_t>(item.nic)];
    text += fmt::format("NIC {}{}, {}{}", nic.name, nic.interface.empty() ? "" : fmt::format(" ({})", nic.interface),
                        node->address, link_text(node->link_gbps));
  } else {
    text += fmt::format("{} {}{}", node->kind == PciNode::Kind::kHostBridge ? "host bridge" : "PCIe switch",
                        node->address, link_text(node->link_gbps));
  }
  text += "\n";
  for (const PciItem& part : item.parts) add_item(host, part, depth + 1, text);
}

// The cores of a node in a package, and its devices.
void add_node(const HostWithDevices& host, int package, int numa, int depth, std::string& text) {
  const NumaNode& node = host.nodes[static_cast<size_t>(numa)];
  std::vector<int> os, allowed;
  size_t num_cores = 0;
  for (const Core& c : host.cores) {
    if (c.numa != numa || (package >= 0 && c.package != package)) continue;
    ++num_cores;
    for (const int pu : c.pus) {
      os.push_back(host.pus[static_cast<size_t>(pu)].os);
      if (host.pus[static_cast<size_t>(pu)].allowed) allowed.push_back(os.back());
    }
  }
  text += fmt::format("{}NUMA node {}: {}", std::string(static_cast<size_t>(2 * depth), ' '), numa,
                      node.memory_bytes > 0 ? size_text(node.memory_bytes) : "memory of unknown size");
  text += num_cores == 0 ? ", no cores" : fmt::format(", {} ({})", plural(num_cores, "core"), cpus_text(os));
  if (num_cores > 0 && allowed.size() < os.size()) text += fmt::format(", allowed: {}", cpu_list_text(allowed));
  text += "\n";
  for (const PciItem& item : pci_items(host, package, numa)) add_item(host, item, depth + 1, text);
}

// "0 > 1 > 2", with long runs of consecutive numbers shortened.
std::string chain_text(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    const bool shortened = end - i >= kShown;
    if (!text.empty()) text += " > ";
    text += shortened ? fmt::format("{} > ... > {}", ranks[i], ranks[end]) : fmt::format("{}", ranks[i]);
    if (shortened) i = end;
  }
  return text;
}

std::string crossings_text(const std::array<int, kNumCrossings>& counts) {
  std::string text;
  for (size_t c = kNumCrossings; c-- > 0;) {
    if (counts[c] == 0) continue;
    text += fmt::format("{} {} {}", text.empty() ? "the ring crosses:" : ",", crossing_name(static_cast<Crossing>(c)),
                        times_text(counts[c]));
  }
  return text.empty() ? "the ring has no hops\n" : text + "\n";
}

// "0 1 | 2 3": the groups that the ring goes through one after the other.
std::string groups_text(const LocalOrder& order) {
  std::string text;
  for (size_t i = 0; i < order.ring.size(); ++i) {
    const auto group = [&](size_t at) { return order.groups[static_cast<size_t>(order.ring[at])]; };
    text += fmt::format("{}{}", i == 0 ? "" : group(i) != group(i - 1) ? " | " : " ", order.ring[i]);
  }
  return text;
}

std::string hop_text(const Hop& hop) {
  if (hop.crossing == Crossing::kCache) return fmt::format("L{} cache", hop.distance);
  if (hop.distance > 1) return fmt::format("{} (distance {})", crossing_name(hop.crossing), hop.distance);
  return std::string(crossing_name(hop.crossing));
}

}  // namespace

std::string_view crossing_name(Crossing crossing) {
  constexpr std::array<std::string_view, kNumCrossings> kNames = {"same core", "shared cache", "NUMA node", "NUMA link",
                                                                  "socket link"};
  return kNames[static_cast<size_t>(crossing)];
}

std::array<int, kNumCrossings> ring_crossings(const Hops& hops, std::span<const int> ring) {
  std::array<int, kNumCrossings> counts{};
  for (size_t i = 0; i < ring.size() && ring.size() > 1; ++i)
    ++counts[static_cast<size_t>(hops.at(ring[i], ring[(i + 1) % ring.size()]).crossing)];
  return counts;
}

std::string size_text(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value == static_cast<double>(static_cast<uint64_t>(value)) ? 0 : 1,
                     units[unit]);
}

std::vector<PciItem> pci_items(const HostWithDevices& host, int package, int numa) {
  std::vector<std::vector<int>> children(host.pci.size());
  for (size_t i = 0; i < host.pci.size(); ++i)
    if (host.pci[i].parent >= 0) children[static_cast<size_t>(host.pci[i].parent)].push_back(static_cast<int>(i));
  std::vector<PciItem> items;
  for (size_t i = 0; i < host.pci.size(); ++i)
    if (host.pci[i].parent < 0 && host.pci[i].package == package && host.pci[i].numa == numa)
      for (PciItem& item : items_below(host, children, static_cast<int>(i))) items.push_back(std::move(item));
  for (size_t g = 0; g < host.gpus.size(); ++g)
    if (host.gpus[g].pci < 0 && host.gpus[g].package == package && host.gpus[g].numa == numa)
      items.push_back({-1, static_cast<int>(g), -1, {}});
  return items;
}

bool on_devices(std::span<const DevicePlacement> places) { return !places.empty() && places.front().gpu >= 0; }

std::vector<int> ring_of(std::span<const DevicePlacement> places, const std::optional<LocalOrder>& order) {
  if (order && !on_devices(places)) return order->ring;
  std::vector<int> by_rank(places.size());
  std::iota(by_rank.begin(), by_rank.end(), 0);
  return by_rank;
}

std::string describe_host(const HostWithDevices& host) {
  std::string text = fmt::format("{}{}, {}, {}, {}, {}, {}\n", host.name.empty() ? "" : host.name + ": ",
                                 plural(host.packages.size(), "package"), plural(host.nodes.size(), "NUMA node"),
                                 plural(host.cores.size(), "core"), plural(host.pus.size(), "CPU"),
                                 plural(host.gpus.size(), "GPU"), plural(host.nics.size(), "NIC"));
  if (!host.caches.empty()) text += "caches: " + caches_text(host) + "\n";
  for (size_t p = 0; p < host.packages.size(); ++p) {
    const Package& package = host.packages[p];
    const auto num_cores = static_cast<size_t>(std::count_if(
        host.cores.begin(), host.cores.end(), [&](const Core& c) { return c.package == static_cast<int>(p); }));
    text += fmt::format("package {}: {}{}\n", p, package.model.empty() ? "" : package.model + ", ",
                        plural(num_cores, "core"));
    for (size_t n = 0; n < host.nodes.size(); ++n)
      if (host.nodes[n].package == static_cast<int>(p))
        add_node(host, static_cast<int>(p), static_cast<int>(n), 1, text);
    for (const PciItem& item : pci_items(host, static_cast<int>(p), -1)) add_item(host, item, 1, text);
  }
  for (size_t n = 0; n < host.nodes.size(); ++n)
    if (host.nodes[n].package < 0) {
      text += host.nodes[n].num_cores > 0 ? "all packages\n" : "";
      add_node(host, -1, static_cast<int>(n), host.nodes[n].num_cores > 0 ? 1 : 0, text);
    }
  if (const auto items = pci_items(host, -1, -1); !items.empty()) {
    text += "devices at unknown places\n";
    for (const PciItem& item : items) add_item(host, item, 1, text);
  }
  return text;
}

std::string describe_place(const HostWithDevices& host, const DevicePlacement& place) {
  std::string text = place_text(host, place);
  if (place.gpu >= 0) text += fmt::format(", GPU {}", place.gpu);
  if (place.away) text += " (no core near it is allowed)";
  if (place.nic >= 0) text += fmt::format(", NIC {}", host.nics[static_cast<size_t>(place.nic)].name);
  return text;
}

std::string describe_places(const HostWithDevices& host, std::span<const DevicePlacement> places) {
  std::string text;
  for (size_t r = 0; r < places.size(); ++r) text += fmt::format("rank {:<3} {}\n", r, describe_place(host, places[r]));
  return text;
}

std::string describe_ring(const HostWithDevices& host, std::span<const DevicePlacement> places,
                          const std::optional<LocalOrder>& order) {
  if (on_devices(places)) return "ring of device memory: by rank\n";
  const Hops hops(host, std::vector<Placement>(places.begin(), places.end()));
  const std::vector<int> ring = ring_of(places, order);
  std::string text = order ? fmt::format("ring: by places {}\n", groups_text(*order)) : "ring: by rank\n";
  for (size_t i = 0; i < ring.size() && ring.size() > 1;) {
    const auto hop_at = [&](size_t k) { return hops.at(ring[k % ring.size()], ring[(k + 1) % ring.size()]); };
    std::vector<int> chain = {ring[i]};
    size_t end = i;
    for (; end < ring.size() && hop_at(end) == hop_at(i); ++end) chain.push_back(ring[(end + 1) % ring.size()]);
    text += fmt::format("{:<32} {}\n", chain_text(chain), hop_text(hop_at(i)));
    i = end;
  }
  return text + crossings_text(ring_crossings(hops, ring));
}

}  // namespace rondo
