#include "topology/scene.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

namespace rondo {
namespace {

constexpr std::array<std::string_view, 4> kCpuNames = {"intel", "amd", "arm", "other"};
constexpr std::array<std::string_view, 3> kKnownNames = {"off", "on", "unknown"};
constexpr size_t kMostDevices = 256, kMostRanks = 4096;

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Splits a line into words; "a b" in quotes is one word, also after a key. Nothing for an unclosed quote.
std::optional<std::vector<std::string>> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
      any = true;
    } else if (!quoted && c == '#') {
      break;
    } else if (!quoted && (c == ' ' || c == '\t' || c == '\r')) {
      if (any) words.push_back(std::move(word));
      word.clear();
      any = false;
    } else {
      word.push_back(c);
      any = true;
    }
  }
  if (quoted) return std::nullopt;
  if (any) words.push_back(std::move(word));
  return words;
}

class Parser {
 public:
  Expected<GpuScene> parse(std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      const size_t end = std::min(text.find('\n'), text.size());
      where_ = fmt::format("line {}", number);
      RONDO_TRY(line(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    where_ = "the description";
    if (scene_.machine.devices.empty()) return wrong("no device");
    begin_pairs();
    return std::move(scene_);
  }

 private:
  Status wrong(std::string_view what) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", where_, what));
  }

  Status line(std::string_view text) {
    const auto words = words_of(text);
    if (!words) return wrong("a quote is not closed");
    if (words->empty()) return {};
    const std::string& kind = words->front();
    const std::vector<std::string> rest(words->begin() + 1, words->end());
    if (kind == "machine") return each(rest, [&](auto key, auto value) { return machine(key, value); });
    if (kind == "device") return device(rest);
    if (kind == "pair") return pair(rest);
    if (kind == "rank") return rank(rest);
    return wrong(fmt::format("unknown word {}", kind));
  }

  // Calls set(key, value) for "key=value"; set returns false for an unknown key or a wrong value.
  template <class Set>
  Status each(std::span<const std::string> words, const Set& set) {
    for (const std::string& word : words) {
      const size_t equal = word.find('=');
      if (equal == std::string::npos) return wrong(fmt::format("{} is not key=value", word));
      const std::string_view key = std::string_view(word).substr(0, equal),
                             value = std::string_view(word).substr(equal + 1);
      if (!set(key, value)) return wrong(fmt::format("unknown key or wrong value: {}", word));
    }
    return {};
  }

  static bool version(std::string_view value, int& major, int& minor) {
    const size_t dot = value.find('.');
    return dot != std::string_view::npos && read_number(value.substr(0, dot), major) &&
           read_number(value.substr(dot + 1), minor) && major >= 0 && minor >= 0 && major < 1000 && minor < 100;
  }
  static bool yes(std::string_view value, bool& flag) {
    flag = value == "yes";
    return flag || value == "no";
  }
  template <class E, size_t N>
  static bool named(const std::array<std::string_view, N>& names, std::string_view value, E& out) {
    const auto it = std::find(names.begin(), names.end(), value);
    if (it != names.end()) out = static_cast<E>(it - names.begin());
    return it != names.end();
  }
  static bool named_path(std::string_view value, PciPath& out) {
    for (int p = 0; p <= static_cast<int>(PciPath::kUnknown); ++p)
      if (value == path_name(out = static_cast<PciPath>(p))) return true;
    return false;
  }

  bool machine(std::string_view key, std::string_view value) {
    GpuMachine& m = scene_.machine;
    if (key == "host") return m.host = value, true;
    if (key == "cpu") return named(kCpuNames, value, m.cpu);
    if (key == "iommu") return named(kKnownNames, value, m.iommu);
    if (key == "acs") return named(kKnownNames, value, m.acs);
    if (key == "nvml") return m.nvml_version = value == "none" ? std::string_view() : value, true;
    int major = 0, minor = 0;
    if (key != "driver" || !version(value, major, minor)) return false;
    m.driver_version = major * 1000 + minor * 10;
    return true;
  }

  Status device(std::span<const std::string> words) {
    GpuMachine& m = scene_.machine;
    size_t number = 0;
    if (words.empty() || !read_number(words[0], number) || number != m.devices.size())
      return wrong(fmt::format("expected device {}", m.devices.size()));
    if (number >= kMostDevices) return wrong("too many devices");
    if (paired_) return wrong("devices must come before pairs and ranks");
    GpuDevice d;
    RONDO_TRY(each(words.subspan(1), [&](auto key, auto value) {
      if (key == "name") return d.name = value, true;
      if (key == "uuid") return d.uuid = value, true;
      if (key == "pci") return d.pci = value, true;
      if (key == "capability") return version(value, d.capability_major, d.capability_minor);
      if (key == "multiprocessors") return read_number(value, d.multiprocessors) && d.multiprocessors >= 0;
      if (key == "memory_gib") return read_number(value, d.memory_gib) && d.memory_gib >= 0;
      if (key == "memory_gbps") return read_number(value, d.memory_gbps) && d.memory_gbps >= 0;
      if (key == "numa") return read_number(value, d.numa_node);
      if (key == "switch_links") return read_number(value, d.switch_links) && d.switch_links >= 0;
      if (key == "mig") return yes(value, d.mig);
      const size_t x = value.find('x');
      return key == "pcie" && value.starts_with("gen") && x != std::string_view::npos &&
             read_number(value.substr(3, x - 3), d.pcie_generation) && read_number(value.substr(x + 1), d.pcie_lanes);
    }));
    m.devices.push_back(std::move(d));
    return {};
  }

  void begin_pairs() {
    if (paired_) return;
    paired_ = true;
    scene_.machine.pairs.resize(scene_.machine.devices.size() * scene_.machine.devices.size());
  }

  Status pair(std::span<const std::string> words) {
    begin_pairs();
    GpuMachine& m = scene_.machine;
    const size_t n = m.devices.size();
    size_t first[2] = {}, end[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      if (words.size() < 2) return wrong("a pair needs two devices");
      if (words[i] == "*") end[i] = n;
      else if (read_number(words[i], first[i]) && first[i] < n) end[i] = first[i] + 1;
      else return wrong(fmt::format("{} is not a device", words[i]));
    }
    for (size_t a = first[0]; a < end[0]; ++a)
      for (size_t b = first[1]; b < end[1]; ++b) {
        if (a == b) continue;
        GpuPair p = m.pair(a, b);
        RONDO_TRY(each(words.subspan(2), [&](auto key, auto value) {
          if (key == "access") return yes(value, p.access);
          if (key == "atomics") return yes(value, p.atomics);
          if (key == "nvlinks") return read_number(value, p.nvlinks) && p.nvlinks >= 0;
          if (key == "path") return named_path(value, p.path);
          return key == "refused" && (p.refused = value, true);
        }));
        m.pair(a, b) = m.pair(b, a) = p;
      }
    return {};
  }

  Status rank(std::span<const std::string> words) {
    begin_pairs();
    RankPlace r;
    RONDO_TRY(each(words, [&](auto key, auto value) {
      if (key == "host") return read_number(value, r.host);
      if (key == "process") return read_number(value, r.process);
      if (key == "container") return read_number(value, r.container);
      return key == "device" && read_number(value, r.device) && r.device < scene_.machine.devices.size();
    }));
    if (scene_.ranks.size() >= kMostRanks) return wrong("too many ranks");
    scene_.ranks.push_back(r);
    return {};
  }

  GpuScene scene_;
  std::string where_;
  bool paired_ = false;
};

std::string number_text(double value) { return fmt::format("{}", value); }

}  // namespace

Expected<GpuScene> parse_scene(std::string_view text) { return Parser().parse(text); }

std::string scene_text(const GpuScene& scene) {
  const GpuMachine& m = scene.machine;
  std::string text = fmt::format("machine host={} cpu={} driver={}.{} nvml={} iommu={} acs={}\n", m.host,
                                 kCpuNames[static_cast<size_t>(m.cpu)], m.driver_version / 1000,
                                 m.driver_version % 1000 / 10, m.nvml_version.empty() ? "none" : m.nvml_version,
                                 kKnownNames[static_cast<size_t>(m.iommu)], kKnownNames[static_cast<size_t>(m.acs)]);
  for (size_t i = 0; i < m.devices.size(); ++i) {
    const GpuDevice& d = m.devices[i];
    text += fmt::format(
        "device {} name=\"{}\" uuid={} pci={} capability={}.{} multiprocessors={} memory_gib={} "
        "memory_gbps={} pcie=gen{}x{} numa={} switch_links={}{}\n",
        i, d.name, d.uuid, d.pci, d.capability_major, d.capability_minor, d.multiprocessors, number_text(d.memory_gib),
        number_text(d.memory_gbps), d.pcie_generation, d.pcie_lanes, d.numa_node, d.switch_links,
        d.mig ? " mig=yes" : "");
  }
  for (size_t a = 0; a < m.devices.size(); ++a)
    for (size_t b = a + 1; b < m.devices.size(); ++b) {
      const GpuPair& p = m.pair(a, b);
      text += fmt::format("pair {} {} access={} atomics={} nvlinks={} path={}", a, b, p.access ? "yes" : "no",
                          p.atomics ? "yes" : "no", p.nvlinks, path_name(p.path));
      text += p.refused.empty() ? "\n" : fmt::format(" refused=\"{}\"\n", p.refused);
    }
  for (const RankPlace& r : scene.ranks)
    text += fmt::format("rank host={} process={} device={} container={}\n", r.host, r.process, r.device, r.container);
  return text;
}

}  // namespace rondo
