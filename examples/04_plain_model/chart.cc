#include "chart.h"

#include <fmt/format.h>

#include <algorithm>

namespace plain {

std::string loss_svg(const std::vector<double>& values) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 60, kRight = 20, kTop = 20, kBottom = 40;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double low = values.empty() ? 0 : *least, range = values.empty() || *most == *least ? 1 : *most - *least;
  const double across = values.size() > 1 ? static_cast<double>(values.size() - 1) : 1;
  std::string points;
  for (size_t i = 0; i < values.size(); ++i)
    points += fmt::format("{:.1f},{:.1f} ", kLeft + (kWidth - kLeft - kRight) * static_cast<double>(i) / across,
                          kTop + (kHeight - kTop - kBottom) * (1 - (values[i] - low) / range));
  const double right = kWidth - kRight, floor = kHeight - kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<path d=\"M{} {}V{}H{}\" fill=\"none\" stroke=\"gray\"/>\n",
      kWidth, kHeight, kLeft, kTop, floor, right);
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#1f5fbf\" stroke-width=\"1.5\"/>\n", points);
  auto text = [&](double x, double y, const char* anchor, const std::string& what) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, what);
  };
  text(kLeft - 6, kTop + 4, "end", fmt::format("{:.3f}", low + range));
  text(kLeft - 6, floor + 4, "end", fmt::format("{:.3f}", low));
  text(kLeft, floor + 18, "middle", "1");
  text(right, floor + 18, "middle", std::to_string(values.size()));
  text((kLeft + right) / 2, floor + 32, "middle", "step; loss in nats a character");
  return svg + "</svg>\n";
}

}  // namespace plain
