#include "topology/host_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "topology/host_text.h"

namespace rondo {
namespace {

constexpr double kPad = 8, kTitle = 17, kRankRadius = 9;

// A box has parts in rows of `columns`, or its own size.
struct Box {
  std::string style;
  std::vector<std::string> text;  // a title if the box has parts, else its centred lines
  size_t columns = 1;
  int core = -1, gpu = -1;
  double w = 0, h = 0, x = 0, y = 0;
  std::vector<Box> parts = {};
};

double text_width(std::string_view text) { return 6.2 * static_cast<double>(text.size()) + 2 * kPad; }

void measure(Box& box) {
  if (box.parts.empty() && box.w > 0) return;
  double y = box.text.empty() ? kPad : kPad + kTitle * static_cast<double>(box.text.size());
  double widest = 0;
  for (const std::string& line : box.text) widest = std::max(widest, text_width(line) - kPad);
  for (size_t row = 0; row < box.parts.size(); row += box.columns) {
    double x = kPad, tallest = 0;
    for (size_t i = row; i < std::min(row + box.columns, box.parts.size()); ++i) {
      Box& part = box.parts[i];
      measure(part);
      part.x = x;
      part.y = y;
      x += part.w + kPad;
      tallest = std::max(tallest, part.h);
    }
    y += tallest + kPad;
    widest = std::max(widest, x);
  }
  box.w = widest;
  box.h = y;
}

void place(Box& box, double x, double y) {
  box.x += x;
  box.y += y;
  for (Box& part : box.parts) place(part, box.x, box.y);
}

size_t columns_for(size_t n) { return n <= 4 ? std::max<size_t>(n, 1) : n <= 16 ? 4 : 8; }

class Drawing {
 public:
  Drawing(const HostWithDevices& host, std::span<const DevicePlacement> places, const std::optional<LocalOrder>& order)
      : host_(host),
        places_(places),
        ring_(ring_of(places, order)),
        hops_(host, std::vector<Placement>(places.begin(), places.end())) {}

  std::string draw() {
    Box root = machine();
    measure(root);
    place(root, kPad, kPad);
    std::string boxes;
    add_box(root, boxes);
    const std::string ranks = rank_marks(), arrows = ring_arrows();
    double legend_y = root.h + 3 * kPad;
    double width = root.w + 2 * kPad;
    const std::string legend = legend_lines(legend_y, width);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
               "{1:.0f}\" "
               "font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"10.5\">\n",
               width, legend_y + kPad) +
           std::string(kStyles) +
           fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#fff\"/>\n", width, legend_y + kPad) +
           markers() + boxes + arrows + ranks + legend + "</svg>\n";
  }

 private:
  static constexpr std::string_view kStyles =
      "<style>\n"
      ".machine{fill:#fbfbfb;stroke:#777}.package{fill:#f1f3f6;stroke:#556}.node{fill:#fff;stroke:#99a}\n"
      ".cache{fill:#eef6fb;stroke:#9bc}.pci{fill:#f6f1fb;stroke:#b9a}.core{fill:#fff;stroke:#aab}\n"
      ".denied{fill:#ddd;stroke:#bbb}.gpu{fill:#e7f4dd;stroke:#6a4}.nic{fill:#fdf3df;stroke:#ca6}.plain{fill:none;"
      "stroke:none}\n"
      ".rank{fill:#223;stroke:#fff}.number{fill:#fff;text-anchor:middle;font-size:9.5px}.in{text-anchor:middle;fill:#"
      "334}\n"
      ".hop{fill:none;stroke-width:1.8}\n"
      "</style>\n";
  static constexpr std::array<std::string_view, kNumCrossings> kColours = {"#888888", "#2b7bba", "#138a78", "#e07b00",
                                                                           "#d01c1c"};

  static std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == '<') out += "&lt;";
      else if (c == '>') out += "&gt;";
      else if (c == '&') out += "&amp;";
      else if (c == '"') out += "&quot;";
      else out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out;
  }

  Box core_box(int c) const {
    const Core& core = host_.cores[static_cast<size_t>(c)];
    const bool allowed = std::any_of(core.pus.begin(), core.pus.end(),
                                     [&](int pu) { return host_.pus[static_cast<size_t>(pu)].allowed; });
    return {allowed ? "core" : "denied", {fmt::format("{}", c)}, 1, c, -1, 46, 24};
  }

  // Cores of a package and node, grouped by the largest cache that several cores share.
  Box cores(int package, int numa) const {
    std::vector<std::pair<int, std::vector<int>>> groups;
    for (size_t c = 0; c < host_.cores.size(); ++c) {
      const Core& core = host_.cores[c];
      if (core.numa != numa || (package >= 0 && core.package != package)) continue;
      int cache = -1;
      for (const int k : core.caches)
        if (host_.caches[static_cast<size_t>(k)].num_cores > 1) cache = k;
      if (groups.empty() || groups.back().first != cache) groups.push_back({cache, {}});
      groups.back().second.push_back(static_cast<int>(c));
    }
    Box all{"plain", {}, columns_for(groups.size())};
    for (const auto& [cache, members] : groups) {
      Box group{cache < 0 ? "plain" : "cache", {}, columns_for(members.size())};
      if (cache >= 0) {
        const DataCache& c = host_.caches[static_cast<size_t>(cache)];
        group.text = {fmt::format("L{}, {}", c.level, size_text(c.size_bytes))};
      }
      for (const int core : members) group.parts.push_back(core_box(core));
      all.parts.push_back(std::move(group));
    }
    return all;
  }

  Box pci_box(const PciItem& item) const {
    if (item.gpu >= 0) {
      const HostGpu& gpu = host_.gpus[static_cast<size_t>(item.gpu)];
      Box box{"gpu", {fmt::format("GPU {}", item.gpu), gpu.name.substr(0, 24), gpu.address}, 1, -1, item.gpu, 0, 48};
      box.w = std::max(text_width(box.text[1]), text_width(box.text[2])) + 2 * kRankRadius;
      return box;
    }
    if (item.nic >= 0) {
      const HostNic& nic = host_.nics[static_cast<size_t>(item.nic)];
      Box box{"nic", {nic.name, nic.interface.empty() ? "NIC" : nic.interface}, 1, -1, -1, 0, 48};
      box.w = std::max(60.0, text_width(nic.name));
      return box;
    }
    const PciNode& node = host_.pci[static_cast<size_t>(item.pci)];
    Box box{"pci", {}, 2};
    box.text = {
        fmt::format("{} {}", node.kind == PciNode::Kind::kHostBridge ? "host bridge" : "PCIe switch", node.address)};
    for (const PciItem& part : item.parts) box.parts.push_back(pci_box(part));
    return box;
  }

  void add_devices(int package, int numa, Box& to) const {
    const std::vector<PciItem> items = pci_items(host_, package, numa);
    if (items.empty()) return;
    Box devices{"plain", {}, items.size() > 2 ? size_t{4} : size_t{2}};
    for (const PciItem& item : items) devices.parts.push_back(pci_box(item));
    to.parts.push_back(std::move(devices));
  }

  Box node_box(int package, int numa) const {
    const NumaNode& node = host_.nodes[static_cast<size_t>(numa)];
    Box box{"node", {fmt::format("NUMA node {}", numa)}};
    if (node.memory_bytes > 0) box.text[0] += ", " + size_text(node.memory_bytes);
    if (node.num_cores > 0) box.parts.push_back(cores(package, numa));
    add_devices(package, numa, box);
    return box;
  }

  Box machine() const {
    Box root{"machine", {host_.name.empty() ? "host" : host_.name}};
    Box packages{"plain", {}, host_.packages.size() > 4 ? size_t{4} : size_t{2}};
    for (size_t p = 0; p < host_.packages.size(); ++p) {
      const std::string& model = host_.packages[p].model;
      Box box{"package", {fmt::format("package {}{}{}", p, model.empty() ? "" : ": ", model)}};
      Box nodes{"plain", {}, 2};
      for (size_t n = 0; n < host_.nodes.size(); ++n) {
        const NumaNode& node = host_.nodes[n];
        if (node.package == static_cast<int>(p))
          nodes.parts.push_back(node_box(static_cast<int>(p), static_cast<int>(n)));
        else if (node.package < 0 && node.num_cores > 0)
          nodes.parts.push_back(cores(static_cast<int>(p), static_cast<int>(n)));
      }
      box.parts.push_back(std::move(nodes));
      add_devices(static_cast<int>(p), -1, box);
      packages.parts.push_back(std::move(box));
    }
    root.parts.push_back(std::move(packages));
    for (size_t n = 0; n < host_.nodes.size(); ++n)
      if (host_.nodes[n].package < 0) {
        Box box{"node",
                {fmt::format("NUMA node {}, {}{}", n, size_text(host_.nodes[n].memory_bytes),
                             host_.nodes[n].num_cores > 0 ? " for all packages" : "")}};
        add_devices(-1, static_cast<int>(n), box);
        root.parts.push_back(std::move(box));
      }
    add_devices(-1, -1, root);
    return root;
  }

  void add_box(const Box& box, std::string& out) {
    const Point rank_at = {box.x + kRankRadius + 4, box.y + box.h / 2};  // the text is to its right
    if (box.core >= 0) core_at_[box.core] = rank_at;
    if (box.gpu >= 0) gpu_at_[box.gpu] = rank_at;
    if (box.style != "plain")
      out += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\"/>\n",
                         box.style, box.x, box.y, box.w, box.h);
    const bool leaf = box.parts.empty() && (box.core >= 0 || box.gpu >= 0 || box.style == "nic");
    const double line_h = 13,
                 top = leaf ? box.y + box.h / 2 - line_h * (static_cast<double>(box.text.size()) - 1) / 2 + 4
                            : box.y + kTitle;
    const double shift = box.gpu >= 0 || box.core >= 0 ? kRankRadius : 0;
    for (size_t i = 0; i < box.text.size(); ++i)
      out += fmt::format("<text{} x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", leaf ? " class=\"in\"" : "",
                         leaf ? box.x + box.w / 2 + shift : box.x + kPad, top + line_h * static_cast<double>(i),
                         escaped(box.text[i]));
    for (const Box& part : box.parts) add_box(part, out);
  }

  using Point = std::pair<double, double>;
  // Ranks on the same core or GPU are drawn side by side.
  std::string rank_marks() {
    std::map<std::pair<int, int>, int> seen;
    std::string out;
    for (size_t r = 0; r < places_.size(); ++r) {
      const DevicePlacement& p = places_[r];
      Point at = p.gpu >= 0 ? gpu_at_[p.gpu] : core_at_[p.core];
      const int nth = seen[{p.gpu, p.gpu >= 0 ? -1 : p.core}]++;
      at.first += 10 * nth;
      rank_at_.push_back(at);
      out += fmt::format(
          "<circle class=\"rank\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"{2:.0f}\"/><text class=\"number\" "
          "x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
          at.first, at.second, kRankRadius, at.second + 3.5, r);
    }
    return out;
  }

  static std::string markers() {
    std::string out = "<defs>\n";
    for (size_t c = 0; c < kNumCrossings; ++c)
      out += fmt::format(
          "<marker id=\"a{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"5\" markerHeight=\"5\" "
          "orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{}\"/></marker>\n",
          c, kColours[c]);
    return out + "</defs>\n";
  }

  // Each arrow bends to its left, so that both directions are visible.
  std::string ring_arrows() const {
    std::string out;
    for (size_t i = 0; i < ring_.size() && ring_.size() > 1; ++i) {
      const int a = ring_[i], b = ring_[(i + 1) % ring_.size()];
      const auto [x1, y1] = rank_at_[static_cast<size_t>(a)];
      const auto [x2, y2] = rank_at_[static_cast<size_t>(b)];
      const double dx = x2 - x1, dy = y2 - y1, length = std::max(1.0, std::hypot(dx, dy));
      const double bend = std::min(60.0, 8 + 0.12 * length);
      const double cx = (x1 + x2) / 2 + bend * dy / length, cy = (y1 + y2) / 2 - bend * dx / length;
      const auto towards = [&](double x, double y) {  // the point where the line leaves the rank's circle
        const double l = std::max(1.0, std::hypot(cx - x, cy - y));
        return Point{x + (kRankRadius + 1) * (cx - x) / l, y + (kRankRadius + 1) * (cy - y) / l};
      };
      const auto [sx, sy] = towards(x1, y1);
      const auto [ex, ey] = towards(x2, y2);
      const size_t crossing = on_devices(places_) ? 0 : static_cast<size_t>(hops_.at(a, b).crossing);
      out += fmt::format(
          "<path class=\"hop\" d=\"M{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}\" stroke=\"{}\" "
          "marker-end=\"url(#a{})\"/>\n",
          sx, sy, cx, cy, ex, ey, kColours[crossing], crossing);
    }
    return out;
  }

  std::string legend_lines(double& y, double& width) const {
    std::string out = fmt::format(
        "<circle class=\"rank\" cx=\"31\" cy=\"{:.1f}\" r=\"{:.0f}\"/>"
        "<text x=\"54\" y=\"{:.1f}\">a rank, on its core or its GPU</text>\n",
        y, kRankRadius, y + 4);
    y += kTitle;
    const bool by_rank = on_devices(places_);
    const auto counts = ring_crossings(hops_, ring_);
    for (size_t c = by_rank ? 1 : kNumCrossings; c-- > 0;) {
      if (counts[c] == 0 && !by_rank) continue;
      const std::string text = by_rank ? "the ring of device memory, by rank"
                                       : fmt::format("{}: {} of the ring's {} hops",
                                                     crossing_name(static_cast<Crossing>(c)), counts[c], ring_.size());
      width = std::max(width, 60 + text_width(text));
      out += fmt::format(
          "<line x1=\"16\" y1=\"{0:.1f}\" x2=\"46\" y2=\"{0:.1f}\" stroke=\"{1}\" stroke-width=\"2\"/>"
          "<text x=\"54\" y=\"{2:.1f}\">{3}</text>\n",
          y, kColours[c], y + 4, escaped(text));
      y += kTitle;
    }
    return out;
  }

  const HostWithDevices& host_;
  const std::span<const DevicePlacement> places_;
  const std::vector<int> ring_;
  const Hops hops_;
  std::map<int, Point> core_at_, gpu_at_;
  std::vector<Point> rank_at_;
};

}  // namespace

std::string host_svg(const HostWithDevices& host, std::span<const DevicePlacement> places,
                     const std::optional<LocalOrder>& order) {
  return Drawing(host, places, order).draw();
}

}  // namespace rondo
