// Training data from all plain files of a folder, one after the other; and the curve that rank 0 draws.
//
// Thread safety: plain values.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Reads files in the order of their names, so that all ranks read the same. Drops bytes beyond ASCII.
inline std::string read_text(const std::filesystem::path& place) {
  std::set<std::filesystem::path> files;
  if (std::filesystem::is_directory(place)) {
    for (const auto& entry : std::filesystem::directory_iterator(place))
      if (entry.is_regular_file() && !entry.is_symlink()) files.insert(entry.path());
  } else {
    files.insert(place);
  }
  std::string text;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) >= 128; });
  return text;
}

struct Batch {
  torch::Tensor ids, next;  // size x context
};

/// A function of the seed, whatever the number of ranks.
inline Batch draw_batch(const std::string& text, int64_t size, int64_t context, uint64_t seed) {
  torch::Tensor both = torch::empty({size, context + 1}, torch::kInt64);
  auto* to = both.data_ptr<int64_t>();
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (int64_t i = 0; i < size; ++i) {
    x ^= x >> 31, x *= 0xd6e8feb86659fd93, x ^= x >> 29;
    const char* from = text.data() + x % (text.size() - static_cast<size_t>(context));
    to = std::transform(from, from + context + 1, to, [](char c) { return static_cast<int64_t>(c); });
  }
  return {both.narrow(1, 0, context), both.narrow(1, 1, context)};
}

/// Draws (step, loss) as a curve. False: the file cannot be written.
inline bool draw_curve(const std::string& path, const std::vector<std::pair<int, double>>& points,
                       const std::string& title) {
  constexpr double kWidth = 640, kHeight = 360, kLeft = 50, kTop = 40, kBottom = 320, kRight = 620;
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr || points.empty()) return false;
  double most = 0;
  for (const auto& [step, loss] : points) most = std::max(most, loss);
  most = std::ceil(most);
  auto x = [&](int step) { return kLeft + (kRight - kLeft) * step / std::max(1, points.back().first); };
  auto y = [&](double loss) { return kBottom - (kBottom - kTop) * loss / most; };
  std::fprintf(file,
               "<svg xmlns='http://www.w3.org/2000/svg' width='%g' height='%g' font-family='sans-serif' "
               "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n<text x='%g' y='24'>%s</text>\n",
               kWidth, kHeight, kLeft, title.c_str());
  for (int tick = 0; tick <= static_cast<int>(most); ++tick)
    std::fprintf(file, "<path d='M%g %g H%g' stroke='#ddd'/><text x='30' y='%g'>%d</text>\n", kLeft, y(tick), kRight,
                 y(tick) + 4, tick);
  std::fprintf(file, "<text x='%g' y='345' text-anchor='end'>step %d</text>\n<path fill='none' stroke='#06c' d='",
               kRight, points.back().first);
  char command = 'M';
  for (const auto& [step, loss] : points) std::fprintf(file, "%c%.1f %.1f ", command, x(step), y(loss)), command = 'L';
  std::fprintf(file, "'/>\n</svg>\n");
  return std::fclose(file) == 0;
}
