#include "config/describe_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace rondo {

std::string describe_settings(const SettingValues& values) {
  struct Line {
    std::string_view key;
    std::string shown, from;
  };
  std::vector<Line> lines = {{"setting", "in force", "from"}};
  for (const SettingRow& row : setting_rows()) {
    const SettingValue* v = values.find(row.key);
    std::string shown(v == nullptr                            ? row.fallback
                      : row.kind == SettingRow::Kind::kSecret ? "(set, not shown)"
                                                              : v->text);
    if (shown.empty()) shown = "(empty)";
    lines.push_back({row.key, std::move(shown), v == nullptr ? "default" : v->from});
  }
  constexpr size_t kWidest = 60;  // a longer value does not widen the column
  size_t keys = 0, width = 0;
  for (const Line& l : lines) keys = std::max(keys, l.key.size());
  for (const Line& l : lines)
    if (l.shown.size() <= kWidest) width = std::max(width, l.shown.size());
  std::string text;
  for (const Line& l : lines) text += fmt::format("{:<{}} {:<{}} {}\n", l.key, keys, l.shown, width, l.from);
  return text;
}

}  // namespace rondo
