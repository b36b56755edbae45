// Tables of the renderer: folded rows and columns as text. Thread safety: pure functions.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace rondo {

using Row = std::vector<std::string>;

/// The indices 0 .. n-1, or the first and last of them with -1 for the gap.
inline std::vector<int> fold(int n, int fold_at) {
  std::vector<int> shown;
  const bool all = fold_at == 0 || n <= fold_at;
  for (int i = 0; i < n; ++i) {
    if (all || i < fold_at - 2 || i == n - 1) shown.push_back(i);
    if (!all && i == fold_at - 2) shown.push_back(-1);
  }
  return shown;
}

/// Left-aligned columns, two spaces apart, indented by two.
inline std::string format_rows(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) line += fmt::format("  {:<{}}", row[c], widths[c]);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace rondo
