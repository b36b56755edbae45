#include "config/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace rondo {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// Removes the comment. It begins with a "#" at the start or after a blank.
std::string_view strip_comment(std::string_view s) {
  for (size_t at = s.find('#'); at != std::string_view::npos; at = s.find('#', at + 1))
    if (at == 0 || kBlanks.find(s[at - 1]) != std::string_view::npos) return s.substr(0, at);
  return s;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && kBlanks.find(c) == std::string_view::npos) || byte == 0x7f;
}

// Returns the key in lower case, or an empty text if `s` is not a key.
std::string as_key(std::string_view s) {
  std::string key;
  for (const char c : s) {
    if (c >= 'A' && c <= 'Z') key.push_back(static_cast<char>(c - 'A' + 'a'));
    else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') key.push_back(c);
    else return {};
  }
  return key;
}

}  // namespace

std::string_view trim(std::string_view s) {
  const size_t first = s.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlanks) - first + 1);
}

Expected<std::vector<ConfigEntry>> parse_config(std::string_view text, std::string_view name) {
  if (text.size() > kMaxConfigBytes)
    return invalid_argument("{}: has {} bytes; a configuration has at most {}", name, text.size(), kMaxConfigBytes);
  std::vector<ConfigEntry> entries;
  std::map<std::string, int> lines;  // line by key
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    auto wrong = [&](std::string_view what) { return invalid_argument("{}:{}: {}", name, number, what); };
    if (line.size() > kMaxConfigLineBytes)
      return wrong(fmt::format("the line has {} bytes; at most {}", line.size(), kMaxConfigLineBytes));
    if (const auto bad = std::find_if(line.begin(), line.end(), is_control); bad != line.end())
      return wrong(fmt::format("byte {:#04x} is not text", static_cast<unsigned char>(*bad)));
    const std::string_view content = trim(strip_comment(line));
    if (content.empty()) continue;
    const size_t equals = content.find('=');
    if (equals == std::string_view::npos) return wrong("expected `key = value`, a comment (#) or nothing");
    const std::string key = as_key(trim(content.substr(0, equals)));
    if (key.empty()) return wrong("expected a key of letters, digits and _ before the =");
    const auto [before, fresh] = lines.emplace(key, number);
    if (!fresh) return wrong(fmt::format("{} is already set in line {}", key, before->second));
    entries.push_back({number, key, std::string(trim(content.substr(equals + 1)))});
  }
  return entries;
}

}  // namespace rondo
