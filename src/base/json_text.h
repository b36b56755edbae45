// Texts in JSON.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace rondo {

/// Bytes of the UTF-8 character at the start of a non-empty text; 0 if it is invalid.
inline size_t utf8_bytes(std::string_view text) {
  const auto at = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  const unsigned second = at(1);  // overlong, half a UTF-16 pair, or beyond the last character
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return wrong ? 0 : bytes;
}

/// The text in quotes, escaped for JSON. An invalid UTF-8 byte (in a path, for example) becomes U+FFFD.
inline std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text[0];
    const size_t bytes = utf8_bytes(text);
    if (bytes == 0) out += "\\ufffd";
    else if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out += '"';
}

}  // namespace rondo
