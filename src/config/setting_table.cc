#include "config/setting_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "algorithms/registry.h"
#include "base/error.h"
#include "config/networks.h"

namespace rondo {
namespace {

using Kind = SettingRow::Kind;

constexpr SettingRow kRows[] = {
#define SETTING(name, kind, range, fallback, where, ranks, meaning)                                              \
  {#name,  SettingRow::Kind::k##kind, range, fallback, SettingRow::Where::k##where, SettingRow::Ranks::k##ranks, \
   meaning},
#include "config/settings.def"
};

// Returns the Levenshtein distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

template <class T>
bool whole(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Parses a number with an optional suffix K, M, G or T for powers of 1024.
bool with_suffix(std::string_view text, uint64_t* value) {
  constexpr std::string_view kSuffixes = "KMGT";
  const size_t power = text.empty() ? std::string_view::npos : kSuffixes.find(text.back());
  if (power == std::string_view::npos) return whole(text, value);
  text.remove_suffix(1);
  return whole(text, value) && !__builtin_mul_overflow(*value, uint64_t{1024} << (10 * power), value);
}

std::pair<std::string_view, std::string_view> ends_of(std::string_view range) {
  const size_t dash = std::min(range.find('-'), range.size());
  return {range.substr(0, dash), range.substr(std::min(dash + 1, range.size()))};
}

bool is_within(uint64_t value, std::string_view range) {
  uint64_t least = 0, most = 0;
  return with_suffix(ends_of(range).first, &least) && with_suffix(ends_of(range).second, &most) && value >= least &&
         value <= most;
}

bool is_one_of(std::string_view value, std::string_view choices) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (value == choices.substr(0, bar)) return true;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

bool is_algorithm_name(std::string_view name) {
  const auto all = all_algorithms();
  return std::any_of(all.begin(), all.end(), [&](const Algorithm& a) { return a.name == name; });
}

bool parse(const SettingRow&, std::string_view text, double* seconds) {
  return whole(text, seconds) && *seconds > 0 && std::isfinite(*seconds);
}
bool parse(const SettingRow& row, std::string_view text, uint64_t* number) {
  return (row.kind == Kind::kBytes ? with_suffix(text, number) : whole(text, number)) && is_within(*number, row.range);
}
bool parse(const SettingRow&, std::string_view text, bool* on) {
  *on = text == "on" || text == "1";
  return *on || text == "off" || text == "0";
}
bool parse(const SettingRow& row, std::string_view text, setting::Blocks* blocks) {
  const auto end = [&](std::string_view s, uint32_t* n) {
    return s.empty() || (whole(s, n) && is_within(*n, row.range));
  };
  if (text.find('-') == text.npos) return whole(text, &blocks->least) && end(text, &blocks->most);
  const auto [least, most] = ends_of(text);
  return end(least, &blocks->least) && end(most, &blocks->most) && !(least.empty() && most.empty()) &&
         (blocks->most == 0 || blocks->least <= blocks->most);
}
bool parse(const SettingRow& row, std::string_view text, std::string* value) {
  *value = text;
  return row.kind == Kind::kChoice      ? is_one_of(text, row.range)
         : row.kind == Kind::kAlgorithm ? is_algorithm_name(text)
                                        : true;
}

bool is_valid(const SettingRow& row, std::string_view value) {
#define SETTING(name, kind, range, fallback, where, ranks, meaning) \
  if (row.key == #name) {                                           \
    setting::kind parsed{};                                         \
    return parse(row, value, &parsed);                              \
  }
#include "config/settings.def"
  return false;
}

// Returns the default if it is a value, or an empty text if it is a description.
std::string_view default_of(const SettingRow& row) {
  const bool words = row.kind == Kind::kText || row.kind == Kind::kSecret || row.kind == Kind::kAlgorithm;
  return !words && is_valid(row, row.fallback) ? row.fallback : std::string_view();
}

std::string with_or(std::string_view choices) {
  std::string text;
  for (const char c : choices) c == '|' ? text += " or " : text += c;
  return text;
}

}  // namespace

std::string setting::Blocks::text() const {
  return fmt::format("{}-{}", least == 0 ? "" : std::to_string(least), most == 0 ? "" : std::to_string(most));
}

std::span<const SettingRow> setting_rows() { return kRows; }

const SettingRow* find_setting(std::string_view key) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const SettingRow& r) { return r.key == key; });
  return row != std::end(kRows) ? row : nullptr;
}

std::string variable_of(std::string_view key) {
  std::string name = "RONDO_";
  for (const char c : key) name.push_back(c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  return name;
}

std::string expected_form(const SettingRow& row) {
  const auto [least, most] = ends_of(row.range);
  switch (row.kind) {
    case Kind::kSeconds: return "a positive number of seconds";
    case Kind::kNumber: return fmt::format("a number from {} to {}", least, most);
    case Kind::kBytes: return fmt::format("a number of bytes from {} to {}", least, most);
    case Kind::kBlocks: return fmt::format("numbers from {} to {}, as 4-16, 4-, -16 or 8", least, most);
    case Kind::kSwitch: return "off or on, or 0 or 1";
    case Kind::kChoice: return with_or(row.range);
    case Kind::kAlgorithm: return "the name of an algorithm (rondo check lists them)";
    case Kind::kText:
    case Kind::kSecret: return "text";
  }
  return "?";
}

Status check_setting(const SettingRow& row, std::string_view value, std::string_view where) {
  if (is_valid(row, value)) return {};
  return invalid_argument("{}: expected {}", where, expected_form(row));
}

std::string similar_setting(std::string_view key, bool as_variable) {
  constexpr size_t kMostEdits = 3, kLongestKey = 40;
  std::string_view best;
  size_t fewest = kMostEdits + 1;
  if (key.size() > kLongestKey) return "";
  for (const SettingRow& row : kRows) {
    const size_t edits = row.key.size() >= 4 && key.starts_with(row.key) ? 1 : distance(key, row.key);
    if (edits < fewest && 2 * edits < row.key.size() + 1) fewest = edits, best = row.key;
  }
  if (best.empty()) return "";
  return fmt::format(" (is {} meant?)", as_variable ? variable_of(best) : std::string(best));
}

SettingFields SettingValues::fields() const {
  SettingFields f;
#define SETTING(name, kind, range, fallback, where, ranks, meaning)     \
  if (const std::string_view in_force = text(#name); !in_force.empty()) \
    (void)parse(*find_setting(#name), in_force, &f.name);
#include "config/settings.def"
  return f;
}

std::string_view SettingValues::text(std::string_view key) const {
  const SettingValue* v = find(key);
  return v != nullptr ? std::string_view(v->text) : default_of(*find_setting(key));
}

}  // namespace rondo
