#include "topology/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

namespace rondo {
namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string link_cell(const GpuMachine& m, size_t a, size_t b) {
  if (a == b) return "X";
  const GpuPair& p = m.pair(a, b);
  const int switched = std::min(m.devices[a].switch_links, m.devices[b].switch_links);
  std::string cell = p.nvlinks > 0  ? fmt::format("NV{}", p.nvlinks)
                     : switched > 0 ? fmt::format("NVS{}", switched)
                                    : upper(p.path == PciPath::kUnknown ? "?" : path_name(p.path));
  return p.access ? cell : cell + "!";
}

// The memory of the rings between two ranks. Readers have their data near; writers push.
std::string_view staging_text(LinkKind kind) {
  return kind == LinkKind::kNone ? "nowhere" : kind == LinkKind::kHost ? "host memory" : "reader's device";
}

std::string_view link_name(LinkKind kind) {
  constexpr std::array<std::string_view, 7> kNames = {"none", "local", "shared", "nvlink", "nvswitch", "pcie", "host"};
  return kNames[static_cast<size_t>(kind)];
}

std::string gbps_text(double gbps) { return gbps == 0 ? "unknown" : fmt::format("{:.1f} GB/s", gbps); }

std::string choice_text(const LinkChoice& c) {
  std::string text = fmt::format("{:<8} {:>11}  {}\n", link_name(c.kind), gbps_text(c.expected_gbps), c.reason);
  if (c.kind == LinkKind::kNone) return text;
  return text + fmt::format("{:<20}  staging: {}; direct: {}; LL128: {}\n", "", staging_text(c.kind),
                            c.direct ? "yes" : "no", c.ll128 ? "yes" : "no");
}

// Formats pairs as "0-1 0-2 1-2", "all pairs", or the first few and the number of the rest.
std::string pairs_text(const std::vector<std::pair<size_t, size_t>>& pairs, size_t all) {
  constexpr size_t kShown = 8;
  if (pairs.size() == all && all > 1) return fmt::format("all {} pairs", all);
  std::string text;
  for (size_t i = 0; i < std::min(pairs.size(), kShown); ++i)
    text += fmt::format("{}{}-{}", i == 0 ? "" : " ", pairs[i].first, pairs[i].second);
  if (pairs.size() > kShown) text += fmt::format(" and {} more", pairs.size() - kShown);
  return text;
}

}  // namespace

std::string describe_devices(const GpuMachine& m) {
  std::string text;
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const GpuDevice& d = m.devices[i];
    text += fmt::format("{:<3} {}, {}, capability {}.{}, {} multiprocessors, {:.0f} GiB", i, d.name, d.pci,
                        d.capability_major, d.capability_minor, d.multiprocessors, d.memory_gib);
    if (d.memory_gbps > 0) text += fmt::format(" at {:.0f} GB/s", d.memory_gbps);
    if (d.pcie_generation > 0) text += fmt::format(", PCIe {}.0 x{}", d.pcie_generation, d.pcie_lanes);
    if (d.numa_node >= 0) text += fmt::format(", NUMA node {}", d.numa_node);
    text += d.mig ? ", a MIG slice\n" : "\n";
  }
  return text;
}

std::string describe_links(const GpuMachine& m) {
  std::string text = "    ";
  for (size_t b = 0; b < m.devices.size(); ++b) text += fmt::format("{:<8}", b);
  text += "\n";
  for (size_t a = 0; a < m.devices.size(); ++a) {
    text += fmt::format("{:<4}", a);
    for (size_t b = 0; b < m.devices.size(); ++b) text += fmt::format("{:<8}", link_cell(m, a, b));
    text += "\n";
  }
  size_t at = 0;  // remove blanks at the ends of lines
  while ((at = text.find(" \n")) != std::string::npos) text.erase(at, 1);
  return text;
}

std::string describe_choices(const GpuScene& scene, const LinkPreferences& preferences) {
  std::vector<RankPlace> ranks = scene.ranks;
  for (size_t d = 0; scene.ranks.empty() && d < scene.machine.devices.size(); ++d)
    ranks.push_back({0, d, static_cast<uint32_t>(d), 0});
  // The text of each choice and its pairs, ordered by the first pair.
  std::vector<std::pair<std::string, std::vector<std::pair<size_t, size_t>>>> groups;
  for (size_t a = 0; a < ranks.size(); ++a)
    for (size_t b = a + 1; b < ranks.size(); ++b) {
      std::string answer = choice_text(select_link(scene.machine, ranks[a], ranks[b], preferences));
      auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == answer; });
      if (it == groups.end()) it = groups.insert(groups.end(), {std::move(answer), {}});
      it->second.emplace_back(a, b);
    }
  std::string text;
  const size_t all = ranks.size() * (ranks.size() - 1) / 2;
  for (const auto& [answer, pairs] : groups) text += fmt::format("ranks {}\n  {}", pairs_text(pairs, all), answer);
  constexpr uint32_t kLeastBlocks = 1, kBlocksPerMultiprocessor = 1;
  const EngineChoice e = select_engine(scene.machine, ranks, kLeastBlocks, kBlocksPerMultiprocessor, preferences);
  text += fmt::format("engine\n  {}: {}\n",
                      e.kind == EngineKind::kInterpreter
                          ? fmt::format("interpreter, at most {} blocks a rank", e.most_blocks)
                          : "stream",
                      e.reason);
  return text;
}

}  // namespace rondo
