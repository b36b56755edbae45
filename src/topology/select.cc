#include "topology/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace rondo {
namespace {

// Link rates in GB/s of one direction: the expected rate of a kernel's copy, below the nominal rate. From NCCL's public
// source (github.com/NVIDIA/nccl, src/graph/topo.h, ncclTopoNVLinkBw and PCI_BW), with the nominal rates of NVIDIA's
// architecture white papers and of the PCIe base specifications.

// One NVLink of a device of this compute capability.
constexpr double nvlink_gbps(int major, int minor) {
  const int capability = 10 * major + minor;
  if (capability >= 100) return 40.1;                     // B200: NVLink 5, 50 nominal
  if (capability >= 90) return 20.6;                      // H100: NVLink 4, 25 nominal
  if (capability == 86 || capability == 89) return 12.0;  // GA102: 14.06 nominal
  if (capability >= 70) return 20.0;                      // V100, A100: NVLink 2 and 3, 25 nominal
  return 18.0;                                            // P100: NVLink 1, 20 nominal
}

// A slot. Generation 3 x16: 12 of 15.75 nominal (NCCL's PCI_BW); every generation doubles. 0: unknown.
constexpr double pcie_gbps(int generation, int lanes) {
  if (generation < 1 || lanes < 1) return 0;
  double gbps = 12.0 * lanes / 16;
  for (int g = generation; g < 3; ++g) gbps /= 2;
  for (int g = 3; g < generation; ++g) gbps *= 2;
  return gbps;
}

// The remaining share of a slot's rate if a processor forwards between devices: Intel's processors cut the data into
// packets of 64 bytes (NCCL's INTEL_P2P_OVERHEAD, 6/5).
constexpr double forwarded_share(CpuVendor cpu) { return cpu == CpuVendor::kIntel ? 5.0 / 6 : 1.0; }

// The link between sockets, for the slowest generation still in use (NCCL's SKL_QPI_BW, AMD_ZEN12_BW, ARM_BW).
constexpr double socket_gbps(CpuVendor cpu) {
  switch (cpu) {
    case CpuVendor::kIntel: return 10.0;
    case CpuVendor::kAmd: return 16.0;
    default: return 6.0;
  }
}

// The lower of two rates; 0 is unknown.
double slower(double a, double b) { return a == 0 || b == 0 ? 0 : std::min(a, b); }

double slot_gbps(const GpuDevice& a, const GpuDevice& b) {
  return slower(pcie_gbps(a.pcie_generation, a.pcie_lanes), pcie_gbps(b.pcie_generation, b.pcie_lanes));
}

// NCCL allows LL128 over NVLink between devices of one capability from 7.0 on (src/graph/tuning.cc): elsewhere a line
// may arrive in parts.
bool whole_lines(const GpuDevice& a, const GpuDevice& b) {
  return a.capability_major >= 7 && a.capability_major == b.capability_major &&
         a.capability_minor == b.capability_minor;
}

LinkChoice through_host(const GpuMachine& m, size_t a, size_t b, std::string reason) {
  // One device writes to memory while the other reads it, each over its own slot; the socket link carries one of the
  // two.
  double gbps = slot_gbps(m.devices[a], m.devices[b]);
  if (a != b && m.pair(a, b).path == PciPath::kSystem) gbps = slower(gbps, socket_gbps(m.cpu));
  return {.kind = LinkKind::kHost, .reason = std::move(reason), .expected_gbps = gbps};
}

LinkChoice same_device(const GpuDevice& device, const RankPlace& a, const RankPlace& b) {
  const bool one_process = a.process == b.process;
  return {.kind = one_process ? LinkKind::kLocal : LinkKind::kSharedDevice,
          .reason = one_process ? "one process on one device: its memory is addressed directly"
                                : "two processes on one device: its memory is mapped (CUDA IPC)",
          .expected_gbps = device.memory_gbps / 2,  // a copy reads and writes the same memory
          .direct = true,
          .ll128 = whole_lines(device, device)};
}

// The reason why P2P is impossible between two devices, whatever the preference; empty: possible.
std::string impossible(const GpuMachine& m, const RankPlace& a, const RankPlace& b) {
  // MIG user guide, "Application Considerations": no P2P, neither by PCIe nor by NVLink.
  if (m.devices[a.device].mig || m.devices[b.device].mig) return "MIG slices cannot reach each other";
  const GpuPair& p = m.pair(a.device, b.device);
  if (!p.access)
    return p.refused.empty() ? "the driver allows no P2P between these devices"
                             : fmt::format("the driver allows no P2P between these devices ({})", p.refused);
  if (a.process != b.process && a.container != b.container)
    return "the ranks run in different containers, which cannot open each other's memory";
  return {};
}

PciPath default_level(const GpuMachine& m) {
  constexpr size_t kFew = 2;
  return m.cpu == CpuVendor::kAmd && m.devices.size() <= kFew ? PciPath::kSystem : PciPath::kSwitches;
}

// The reason to distrust P2P over PCIe; empty: none.
std::string suspicion(const GpuMachine& m) {
  if (m.iommu == Known::kYes && m.acs == Known::kYes) return "the IOMMU translates and ACS redirects";
  if (m.iommu == Known::kYes) return "the IOMMU translates";
  if (m.acs == Known::kYes) return "ACS redirects through the processor";
  return {};
}

LinkChoice by_nvlink(const GpuMachine& m, size_t a, size_t b) {
  const GpuDevice &x = m.devices[a], &y = m.devices[b];
  const double link = std::min(nvlink_gbps(x.capability_major, x.capability_minor),
                               nvlink_gbps(y.capability_major, y.capability_minor));
  const int direct = m.pair(a, b).nvlinks, switched = std::min(x.switch_links, y.switch_links);
  const int links = direct > 0 ? direct : switched;
  return {.kind = direct > 0 ? LinkKind::kNvlink : LinkKind::kNvswitch,
          .reason = fmt::format("{} NVLink{} {}, {:.4g} GB/s each", links, links == 1 ? "" : "s",
                                direct > 0 ? "between the two" : "to the NVSwitch", link),
          .expected_gbps = link * links,
          .direct = true,
          .ll128 = whole_lines(x, y)};
}

LinkChoice by_pcie(const GpuMachine& m, size_t a, size_t b) {
  const PciPath path = m.pair(a, b).path;
  double gbps = slot_gbps(m.devices[a], m.devices[b]);
  if (path >= PciPath::kHostBridge) gbps *= forwarded_share(m.cpu);
  if (path == PciPath::kSystem) gbps = slower(gbps, socket_gbps(m.cpu));
  std::string reason = fmt::format("P2P through {}", path_text(path));
  if (const std::string why = suspicion(m); !why.empty()) reason += fmt::format("; {}, so a self-test decides", why);
  return {.kind = LinkKind::kPcie, .reason = std::move(reason), .expected_gbps = gbps, .direct = true};
}

}  // namespace

std::string_view path_name(PciPath path) {
  constexpr std::array<std::string_view, 7> kNames = {"loc", "pix", "pxb", "phb", "node", "sys", "unknown"};
  return kNames[static_cast<size_t>(path)];
}
std::string_view path_text(PciPath path) {
  constexpr std::array<std::string_view, 7> kTexts = {"one board",
                                                      "one PCIe switch",
                                                      "several PCIe switches",
                                                      "the host bridge",
                                                      "the host bridges of a NUMA node",
                                                      "the link between sockets",
                                                      "an unknown PCIe path"};
  return kTexts[static_cast<size_t>(path)];
}

LinkPreferences parse_preferences(std::string_view level, std::string_view engine) {
  LinkPreferences w;
  w.p2p = level != "loc";
  w.nvlink_only = level == "nvl";
  w.stream_engine = engine == "stream";
  for (int p = static_cast<int>(PciPath::kOneSwitch); p <= static_cast<int>(PciPath::kSystem); ++p)
    if (level == path_name(static_cast<PciPath>(p))) w.level = static_cast<PciPath>(p);
  return w;
}

LinkChoice select_link(const GpuMachine& machine, const RankPlace& a, const RankPlace& b,
                       const LinkPreferences& preferences) {
  if (a.host != b.host) return {.reason = "on different hosts: not by a GPU transport"};
  RONDO_CHECK(a.device < machine.devices.size() && b.device < machine.devices.size());
  const auto host = [&](std::string why) {
    return through_host(machine, a.device, b.device, std::move(why) + ": through host memory");
  };
  if (!preferences.p2p) return host("P2P is turned off (RONDO_P2P_LEVEL=loc)");
  if (a.device == b.device) {
    if (a.process != b.process && a.container != b.container)
      return through_host(machine, a.device, b.device,
                          "the ranks run in different containers, which cannot open each other's memory");
    return same_device(machine.devices[a.device], a, b);
  }
  if (std::string why = impossible(machine, a, b); !why.empty()) return host(std::move(why));
  const GpuPair& pair = machine.pair(a.device, b.device);
  const GpuDevice &x = machine.devices[a.device], &y = machine.devices[b.device];
  if (pair.nvlinks > 0 || (x.switch_links > 0 && y.switch_links > 0)) return by_nvlink(machine, a.device, b.device);
  if (preferences.nvlink_only) return host("no NVLink between them, and RONDO_P2P_LEVEL=nvl");
  const PciPath level = preferences.level.value_or(default_level(machine));
  if (pair.path > level)
    return host(fmt::format("P2P would go through {}, beyond {} ({})", path_text(pair.path),
                            preferences.level ? "RONDO_P2P_LEVEL" : "the default level", path_name(level)));
  return by_pcie(machine, a.device, b.device);
}

EngineChoice select_engine(const GpuMachine& machine, std::span<const RankPlace> ranks, uint32_t least_blocks,
                           uint32_t blocks_per_multiprocessor, const LinkPreferences& preferences) {
  EngineChoice c;
  c.reason = "requested (RONDO_DEVICE_ENGINE=stream)";
  if (preferences.stream_engine) return c;
  uint64_t most_blocks = UINT32_MAX;
  size_t most_ranks = 0, fullest = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t sharing = 0;
    for (const RankPlace& other : ranks) {
      if (other.host != ranks[i].host || other.device != ranks[i].device) continue;
      ++sharing;
      if (other.process == ranks[i].process) continue;
      c.reason =
          fmt::format("several processes share device {}: kernels that wait for each other may wait forever there",
                      ranks[i].device);
      return c;
    }
    const uint64_t all =
        uint64_t{blocks_per_multiprocessor} * static_cast<uint64_t>(machine.devices[ranks[i].device].multiprocessors);
    if (all / sharing < most_blocks) most_blocks = all / sharing, most_ranks = sharing, fullest = ranks[i].device;
  }
  if (ranks.empty() || most_blocks < least_blocks) {
    c.reason = fmt::format("{} ranks on device {} have {} blocks each, and need {}", most_ranks, fullest,
                           ranks.empty() ? 0 : most_blocks, least_blocks);
    return c;
  }
  c.kind = EngineKind::kInterpreter;
  c.most_blocks = static_cast<uint32_t>(most_blocks);
  c.reason = most_ranks == 1
                 ? "every rank has a device of its own"
                 : fmt::format("{} threads share device {}, and their blocks fit together", most_ranks, fullest);
  return c;
}

}  // namespace rondo
